"""`simic watch` on request logs: what it finds and does not, and that no look is counted or lost by a restart."""

# ruff: noqa: F811 - fixtures are imported

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from simic.serving import watch as watching
from simic.serving.champions import OpenNetwork
from simic.serving.networks import NetworkModel
from simic.serving.sources import FolderSource
from simic.serving.watch import looks_in, watch
from tests.conftest import Simic
from tests.helpers import ROOT
from tests.serving import shop
from tests.serving.shop import LABEL, initialised, network, shared_network, table  # noqa: F401


def note(log: Path, network: OpenNetwork, rows: pd.DataFrame, number: int, model="grown"):
    return shop.note_requests(log, network.folder, rows, number, model)


def test_a_shift_is_found_named_and_shown_and_nothing_before_it(
    network: OpenNetwork, tmp_path: Path
) -> None:
    log = tmp_path / "requests"
    out = tmp_path / "watch"
    for number in range(4):
        note(log, network, table(250, seed=number + 1, shift=float(number == 3)), number)
        report = watch(network, log, out)
        assert report.look is not None and report.look.number == number + 1
        assert report.look.findings == (["age", "classes predicted"] if number == 3 else [])
    assert report.lines[1].startswith("shift    age: PSI ")
    page = report.page.read_text()
    assert "<h1>Not as in training: age, classes predicted</h1>" in page
    assert page.count('<tr class="finding">') == 3  # two columns, one look


def test_too_few_rows_wait_and_cost_no_look(network: OpenNetwork, tmp_path: Path) -> None:
    log = tmp_path / "requests"
    out = tmp_path / "watch"
    note(log, network, table(199, seed=1), 0)
    report = watch(network, log, out)
    assert (report.look, report.waiting) == (None, 199)
    assert report.lines[0].startswith("rows     199 of 200 that the first look needs; ")
    # A file that a server is writing is no news, and is read when it is whole.
    file = log / "requests-001-7.parquet"
    note(log, network, table(40, seed=2), 1)
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    assert watch(network, log, out).waiting == 199
    file.write_bytes(whole)
    report = watch(network, log, out)
    assert report.look is not None and report.look.rows == 239
    assert [watch(network, log, out).look, len(looks_in(out))] == [report.look, 1]


def test_of_a_registered_model_its_own_answers_count_from_its_first_look_on(
    network: OpenNetwork, tmp_path: Path
) -> None:
    log = tmp_path / "requests"
    models = [
        OpenNetwork(network.folder, NetworkModel(network.folder, version))
        for version in ("shop/1", "shop/2")
    ]
    note(log, network, table(250, seed=1), 0, model="shop/1")
    assert watch(models[0], log, tmp_path / "w").look.number == 1
    note(log, network, table(250, seed=2), 1, model="shop/1")
    note(log, network, table(230, seed=3), 2, model="shop/2")
    look = watch(models[1], log, tmp_path / "w").look
    assert (look.model, look.number, look.rows, look.classes) == ("shop/2", 1, 230, None)
    # Nor does a look at another take its rows away.
    look = watch(models[0], log, tmp_path / "w").look
    assert (look.number, look.rows) == (2, 250)


def test_accuracy_is_judged_by_labels_that_arrive_later(
    network: OpenNetwork, tmp_path: Path
) -> None:
    log = tmp_path / "requests"
    labels = tmp_path / "labels.csv"
    parts = [note(log, network, table(300, seed=1), 0)]
    parts[0].head(40).to_csv(labels, index=False)
    look = watch(network, log, tmp_path / "w", labels).look
    assert look.accuracy is None  # too few
    # The labels of both: what age and city say of the class is reversed.
    parts.append(note(log, network, table(300, seed=2, signal=-1.0), 1))
    # With spaces, as a person may have typed them.
    pd.concat(parts).assign(**{LABEL: lambda x: x[LABEL] + " "}).to_csv(labels, index=False)
    look = watch(network, log, tmp_path / "w", labels).look
    assert look.accuracy.rows == 600 and 0.4 < look.accuracy.measured.estimate < 0.6
    assert look.accuracy.promised.estimate == 0.9 and look.findings == ["accuracy"]
    # Other names than those of the classes.
    renamed = pd.concat([*parts, note(log, network, table(300, seed=3), 2)])
    renamed.assign(**{LABEL: renamed[LABEL].str.upper()}).to_csv(labels, index=False)
    report = watch(network, log, tmp_path / "w", labels)
    assert "labels   900 are no class of the network" in report.lines
    for file in log.glob("requests-002-*"):
        file.unlink()
    # By hand.
    answered = pd.concat(pd.read_parquet(file) for file in sorted(log.iterdir()))
    right = (answered.predicted.to_numpy() == pd.concat(parts)[LABEL].to_numpy()).mean()
    assert look.accuracy.measured.estimate == pytest.approx(right)


def test_what_cannot_be_watched_is_one_line(
    network: OpenNetwork, tmp_path: Path, simic: Simic
) -> None:
    assert "no such folder" in simic.refuses("watch", network.folder, root=tmp_path)
    log = tmp_path / "requests"
    version = FolderSource(network.folder).newest()
    note(log, network, table(250, seed=1), 0, version)
    assert simic("watch", network.folder)[0] == 0
    assert "classes predicted" not in simic.out and "finding  none" in simic.out
    note(log, network, table(250, seed=2, shift=1.0), 1, version)
    (tmp_path / "labels.csv").write_text("request\n1\n")
    refusal = simic.refuses("watch", network.folder, "--labels", "labels.csv")
    assert refusal.endswith(
        "labels.csv: no column 'buys': must have the columns request and buys\n"
    )
    assert simic("watch", network.folder)[0] == 1
    # Each finding once.
    assert simic("watch", network.folder)[0] == 0 and "finding  age" in simic.out
    assert "typo.csv: no such file" in simic.refuses(
        "watch", network.folder, "--labels", "typo.csv"
    )
    assert "nobody: no version is the champion" in simic.refuses("watch", "nobody")
    pd.DataFrame({"time": [1]}).to_parquet(log / "requests-9.parquet")
    assert "no column 'request'" in simic.refuses("watch", network.folder)


def test_an_alarm_that_was_cut_short_is_given_again_and_else_once(
    network: OpenNetwork, tmp_path: Path
) -> None:
    log = tmp_path / "requests"
    note(log, network, table(250, seed=1, shift=1.0), 0)
    report = watch(network, log, tmp_path / "w")
    heard = []
    with pytest.raises(ZeroDivisionError), watching.alarm(report) as findings:
        assert 1 / len(heard)  # whoever was to hear of it has died
    for _ in range(2):
        with watching.alarm(watch(network, log, tmp_path / "w")) as findings:
            heard.append(findings)
    assert heard == [["age"], []]
    # Also where the next look has found something else.
    note(log, network, table(250, seed=2, shift=1.0), 1)
    watch(network, log, tmp_path / "w")
    note(log, network, table(250, seed=3), 2)
    report = watch(network, log, tmp_path / "w")
    assert report.look.findings == ["classes predicted"]
    with watching.alarm(report) as findings:
        assert findings == ["age", "classes predicted"]


WATCH_ON = """
import sys
from pathlib import Path
from simic.serving.champions import OpenNetwork
from simic.serving.networks import NetworkModel
from simic.serving.watch import watch
folder = Path(sys.argv[1])
network = OpenNetwork(folder, NetworkModel(folder, "grown"))
while True:
    watch(network, Path("requests"), Path("watch"))
"""


def test_kill_9_at_any_time_loses_no_row_and_counts_none_twice(
    network: OpenNetwork, tmp_path: Path
) -> None:
    """Watches are killed while requests arrive; the journal then has each row in one look."""
    log = tmp_path / "requests"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    total = 0
    for number in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WATCH_ON, str(network.folder)], cwd=tmp_path, env=env
        )
        deadline = time.monotonic() + 300
        begun = len(looks_in(tmp_path / "watch"))
        while len(looks_in(tmp_path / "watch")) == begun and number:
            assert process.poll() is None and time.monotonic() < deadline
            note(log, network, table(210, seed=total), total)
            total += 210
            time.sleep(0.05 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        note(log, network, table(210, seed=total), total)
        total += 210
    watch(network, log, tmp_path / "watch")
    looks = looks_in(tmp_path / "watch")
    assert [look.number for look in looks] == [*range(1, len(looks) + 1)] and len(looks) >= 4
    assert sum(look.rows for look in looks) == total
    files = [name for look in looks for name in look.read]
    assert sorted(files) == sorted(path.name for path in log.glob("*.parquet"))
    assert json.loads((tmp_path / "watch" / "looks.jsonl").read_text().splitlines()[-1])["rows"]
