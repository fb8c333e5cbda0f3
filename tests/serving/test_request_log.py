"""What was answered is in the log, whatever ends the server."""

import contextlib
import http.client
import os
import re
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from simic.serving import app, request_log
from simic.serving.networks import NetworkModel
from simic.serving.request_log import RequestLog, logged_name
from simic.serving.request_rows import features
from tests.serving.conftest import Server, rows_of, running, serving, table


def test_a_row_comes_back_as_it_came(networks: list[Path], tmp_path: Path) -> None:
    """With the answers, under an id that the client has got; a column of the name of ours has an underscore."""
    new = table(30, 5)
    with running(networks[0], tmp_path / "log") as server:
        answers = [server.ask({"rows": rows_of(new.iloc[k : k + 10])})[1] for k in (0, 10, 20)]
        # Text where numbers were, spaces and an order of its own; all missing.
        odd = server.ask({"rows": [{"time ": " day ", "b": None, "a": "1.5"}]})[1]
        assert [path.suffix for path in (tmp_path / "log").iterdir()] == [".jsonl"]
    [file] = (tmp_path / "log").iterdir()
    assert re.fullmatch(rf"requests-\d{{8}}T\d{{6}}\.\d{{6}}-{os.getpid()}\.parquet", file.name)
    logged = pd.read_parquet(file)
    assert [*logged] == ["time", "request", "model", "a", "b", "time_", "predicted", "probability"]
    assert str(logged["time"].dt.tz) == "UTC" and logged["time"].is_monotonic_increasing
    ids = [f"{answer['request']}-{k}" for answer in answers for k in range(10)]
    assert logged["request"].tolist() == [*ids, f"{odd['request']}-0"]
    assert (logged["model"] == odd["model"]).all()
    pd.testing.assert_frame_equal(
        logged[["a", "b", "time_"]].head(30),
        new.set_axis(["a", "b", "time_"], axis=1),
        check_dtype=False,
    )
    assert logged[["a", "b", "time_"]].iloc[30].fillna("").tolist() == [1.5, "", "day"]
    answers.append(odd)
    assert logged["predicted"].tolist() == [name for item in answers for name in item["predicted"]]
    assert np.allclose(logged["probability"], np.concatenate([a["probability"] for a in answers]))


def sizes(folder: Path) -> list[int]:
    return [len(pd.read_parquet(file)) for file in sorted(folder.glob("*.parquet"))]


def test_files_turn_by_rows_age_and_model_and_the_oldest_go(
    networks: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "MOST_ROWS", 10)
    monkeypatch.setattr(request_log, "MOST_FILES", 4)
    model, other = (NetworkModel(folder, folder.name) for folder in networks)
    log = RequestLog(tmp_path, pytest.fail)
    for _ in range(5):
        log.add(model.predict(table(4), "x"))
    # The eight rows of the second are young, and then old.
    log.tidy()
    assert sizes(tmp_path) == [12]
    with monkeypatch.context() as patch:
        patch.setattr(request_log, "MOST_SECONDS", 0.0)
        log.tidy()
    assert sizes(tmp_path) == [12, 8]
    log.add(model.predict(table(3), "x"))
    log.add(other.predict(table(5), "x"))
    log.tidy()
    assert sizes(tmp_path) == [12, 8, 3]
    log.add(other.predict(table(6), "x"))
    log.add(other.predict(table(1), "x"))
    log.close()
    assert sizes(tmp_path) == [8, 3, 11, 1]
    # And by bytes.
    monkeypatch.setattr(request_log, "MOST_BYTES", 1)
    log.add(model.predict(table(2), "x"))
    log.tidy()
    assert sizes(tmp_path) == [3, 11, 1, 2]


def test_a_tidying_that_fails_is_logged_and_done_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "LOG_SECONDS", 0.0)
    stop, log = threading.Event(), Mock()
    log.tidy.side_effect = [ZeroDivisionError, None]
    stop.wait = Mock(side_effect=[False, False, True])
    app._tidy(log, stop)
    assert log.tidy.call_count == 2 and "could not be tidied" in caplog.text


def test_a_log_that_cannot_be_written_is_counted_and_requests_go_on(
    networks: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("in the way")
    with running(networks[0], tmp_path / "log") as server:
        for _ in range(3):
            assert server.ask({"rows": rows_of(table(2))})[0] == 200
        assert server.metric("simic_log_lost_rows_total") == 6


def test_a_full_disk_is_left_without_empty_journals(
    networks: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[int]()
    model, log = NetworkModel(networks[0], "1"), RequestLog(tmp_path, lost.append)
    # A disk that takes a name and no content.
    with monkeypatch.context() as patch:
        patch.setattr(log, "_write", raise_full)
        for _ in range(3):
            log.add(model.predict(table(4), "x"))
    assert lost == [4, 4, 4] and not [*tmp_path.iterdir()]
    log.add(model.predict(table(4), "x"))
    # What cannot be read keeps no other journal from becoming a file; one that was never written to goes.
    (tmp_path / "requests-0.jsonl").mkdir()
    (tmp_path / "requests-1.jsonl").touch()
    os.utime(tmp_path / "requests-1.jsonl", (0, 0))
    log.close()
    assert sizes(tmp_path) == [4] and len([*tmp_path.iterdir()]) == 2


def raise_full(line: bytes) -> None:
    raise OSError("the disk is full")


def test_names_that_are_ours_with_underscores_are_told_apart() -> None:
    names = ["a", "time", "time_", "time__", "request"]
    logged = [logged_name(name) for name in names]
    assert logged == ["a", "time_", "time__", "time___", "request_"]
    rows = pd.DataFrame([range(5)], columns=logged)
    assert features(rows, [*names, "later"]).iloc[0].tolist()[:5] == [0, 1, 2, 3, 4]
    assert features(rows, ["later"])["later"].isna().all()


def test_kill_9_loses_no_request_that_was_answered_and_doubles_none(
    networks: list[Path], tmp_path: Path
) -> None:
    """Two servers are killed while three clients ask; a third stops as it should."""
    rows = rows_of(table(7))
    answered = list[str]()

    def ask(server: Server, stop: threading.Event) -> None:
        # A server that was killed closes its connections.
        with contextlib.suppress(OSError, http.client.HTTPException):
            while not stop.is_set():
                answered.append(server.ask({"rows": rows})[1]["request"])

    for kills in (True, True, False):
        with serving(tmp_path, networks[0]) as (server, process):
            stop = threading.Event()
            clients = [threading.Thread(target=ask, args=(server, stop)) for _ in range(3)]
            for client in clients:
                client.start()
            enough = len(answered) + 50
            while len(answered) < enough:
                assert process.poll() is None
                time.sleep(0.001)
            if kills:
                process.kill()
            stop.set()
            for client in clients:
                client.join(60)
    logged = pd.concat(map(pd.read_parquet, (tmp_path / "requests").iterdir()))
    assert logged["request"].is_unique
    requests = logged["request"].str.partition("-")[0].value_counts()
    assert set(answered) <= set(requests.index) and set(requests) == {7}
    # Of each kill, those that the clients were waiting for may be there too.
    assert len(requests) <= len(answered) + 6


def test_a_journal_is_left_to_its_server_and_then_made_a_file_once(
    networks: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = NetworkModel(networks[0], "1")
    first, second = (RequestLog(tmp_path, pytest.fail) for _ in range(2))
    for _ in range(2):
        first.add(model.predict(table(4), "x"))
    [journal] = tmp_path.iterdir()
    second.tidy()
    assert [*tmp_path.iterdir()] == [journal]
    content = journal.read_bytes()
    # Where the disk does not take the file, the journal stays.
    in_the_way = journal.with_suffix(".parquet")
    in_the_way.mkdir()
    first.close()
    assert journal.exists()
    in_the_way.rmdir()
    second.tidy()
    assert sizes(tmp_path) == [8]
    # As killed ones leave it: in the midst of a line, with all done but its removal, in the midst of the first line.
    for left, rows in ((content[:-1], 4), (content, 8), (content, 8), (content[:9], 8)):
        journal.write_bytes(left)
        second.tidy()
        assert sizes(tmp_path) == [rows] and not journal.exists()
    # A disk that has forgotten something.
    for left in (content[50:], content.partition(b"\n")[2]):
        journal.write_bytes(left)
        caplog.clear()
        second.tidy()
        assert "aside" in caplog.text and not journal.exists()
    assert sizes(tmp_path) == [8]
