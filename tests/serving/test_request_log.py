"""What was asked is in whole files; a kill loses what is held, and no more."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simic.serving import request_log
from simic.serving.networks import NetworkModel
from simic.serving.request_log import RequestLog
from tests.serving.conftest import Server, rows_of, running, table


def test_a_row_comes_back_as_it_came(networks: list[Path], tmp_path: Path) -> None:
    """With the answers, under an id that the client has got; a column of the name of ours has an underscore."""
    new = table(30, 5)
    with running(networks[0], tmp_path / "log") as server:
        answers = [server.ask({"rows": rows_of(new.iloc[k : k + 10])})[1] for k in (0, 10, 20)]
        # Text where numbers were, spaces and an order of its own; all missing.
        odd = server.ask({"rows": [{"time ": " day ", "b": None, "a": "1.5"}]})[1]
        assert not (tmp_path / "log").exists()
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
    return [len(pd.read_parquet(file)) for file in sorted(folder.iterdir())]


def test_files_turn_by_rows_age_and_model_and_the_oldest_go(
    networks: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "MOST_ROWS", 10)
    monkeypatch.setattr(request_log, "MOST_FILES", 4)
    model, other = (NetworkModel(folder, folder.name) for folder in networks)
    log = RequestLog(tmp_path, pytest.fail)
    for _ in range(5):
        log.add(model.predict(table(4), "x"))
    # The eight rows that are held are young, and then old.
    log.flush_old()
    log._writer.submit(int).result()
    assert sizes(tmp_path) == [12]
    monkeypatch.setattr(request_log, "MOST_SECONDS", 0.0)
    log.flush_old()
    log.add(model.predict(table(3), "x"))
    log.add(other.predict(table(5), "x"))
    log._writer.submit(int).result()
    assert sizes(tmp_path) == [12, 8, 3]
    log.add(other.predict(table(6), "x"))
    log.add(other.predict(table(1), "x"))
    log.close()
    assert sizes(tmp_path) == [8, 3, 11, 1]


def test_a_log_that_cannot_be_written_is_counted_and_requests_go_on(
    networks: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text("in the way")
    monkeypatch.setattr(request_log, "MOST_SECONDS", 0.0)
    with running(networks[0], tmp_path / "log") as server:
        log = server.service.log
        assert log is not None
        for _ in range(3):
            assert server.ask({"rows": rows_of(table(2))})[0] == 200
            log.flush_old()
            log._writer.submit(int).result()
        assert server.metric("simic_log_lost_rows_total") == 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_ended_leaves_whole_files(
    networks: list[Path], tmp_path: Path, number: signal.Signals
) -> None:
    """All requests by SIGTERM; by SIGKILL those of the files that were written."""
    command = [sys.executable, "-m", "simic", "serve", networks[0], "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.fullmatch(r"serves network1-\w+ on (http://127\.0\.0\.1:\d+)\n", line)
        assert address is not None, line
        server = Server(address[1], None)  # type: ignore[arg-type]
        rows = rows_of(table(5_000))
        for _ in range(5):
            assert server.ask({"rows": rows})[0] == 200
        deadline = time.monotonic() + 30
        while number == signal.SIGKILL and len([*tmp_path.glob("requests/*.parquet")]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        process.wait(60)
    assert sizes(tmp_path / "requests") == [10_000] * 2 + [5_000] * (number == signal.SIGTERM)
