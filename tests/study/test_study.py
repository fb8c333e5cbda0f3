"""`simic study` as processes: killed, stopped, started twice, without MLflow."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simic.pipeline import mlflow_store
from simic.pipeline.paths import Workspace
from simic.study import cells, table
from simic.study.plan import StudyPlan
from tests.helpers import ROOT
from tests.study.small_study import BASE, plan, rows

PATIENCE_SECONDS = 600.0  # of a busy machine
GONE = "http://127.0.0.1:1"  # nobody listens there


@contextmanager
def study(folder: Path, *options: str, tracking: str | None = GONE) -> Iterator[subprocess.Popen[str]]:
    """The command, in a session of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW")}
    environment |= {"PYTHONPATH": str(ROOT)} | ({"MLFLOW_TRACKING_URI": tracking} if tracking else {})
    command = [sys.executable, "-m", "simic", "study", "rates.yaml", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            for pid in of_session(process.pid):
                os.kill(pid, signal.SIGKILL)


def of_session(session: int) -> list[int]:
    """Living processes that a command has started, and itself."""
    listed = subprocess.run(["ps", "-eo", "sid=,pid=,stat="], capture_output=True, text=True, check=True).stdout
    found = (line.split() for line in listed.splitlines())
    return [int(pid) for sid, pid, stat in found if int(sid) == session and not stat.startswith("Z")]


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)


def results(found: StudyPlan) -> dict[str, int]:
    """Finished cells, with when they were written."""
    paths = ((cell.fingerprint, found.folder / cell.fingerprint / cells.RESULT) for cell in found.cells)
    return {fingerprint: path.stat().st_mtime_ns for fingerprint, path in paths if path.exists()}


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, error


@pytest.mark.slow
def test_killed_and_resumed_is_never_killed(tmp_path: Path, whole: StudyPlan, initialised: bytes) -> None:
    """The study is killed once a cell is done; its processes end with it. What was done stays, and the
    table is that of cells computed one after the other in one process. MLflow, out of reach at first, learns all once.
    """
    found = plan(tmp_path)
    with study(tmp_path) as first:
        assert first.stderr is not None
        assert any("logging to MLflow failed" in line for line in first.stderr)  # after the first cell
        first.kill()
        first.wait()
        wait_for(lambda: not of_session(first.pid))
    done = results(found)
    assert 1 <= len(done) < 4
    (tmp_path / "mlflow.db").write_bytes(initialised)
    with study(tmp_path, tracking=None) as second:
        code, out, error = ended(second)
        assert (code, error) == (0, "")
        assert of_session(second.pid) == []
    assert f"left     {4 - len(done)} of 4 cells" in out and "cost     about" in out
    assert results(found).items() > done.items()
    assert rows(found.folder / table.TABLE) == rows(whole.folder / table.TABLE)
    assert in_mlflow(Workspace(tmp_path)) == 4
    assert not (tmp_path / "data").exists() and not (tmp_path / "dvc.lock").exists()


def in_mlflow(workspace: Workspace) -> int:
    """Nested runs of the one run of the study, each with its scores and its params."""
    client, experiment_id = mlflow_store.connect(workspace)
    runs = client.search_runs([experiment_id])
    [parent] = [run for run in runs if run.data.tags.get("simic.study") == "rates"]
    nested = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert {run.info.status for run in runs} == {"FINISHED"} and len(runs) == len(nested) + 1
    assert {run.data.params["train.ppo.learning_rate"] for run in nested} == {"0.001", "0.01"}
    assert all("test/learned" in run.data.metrics for run in nested)
    assert [each.path for each in client.list_artifacts(parent.info.run_id)] == [table.TABLE]
    return len({run.data.tags["simic.cell"] for run in nested})


@pytest.mark.slow
def test_stopped_by_ctrl_c_says_how_to_go_on_and_does(tmp_path: Path, whole: StudyPlan) -> None:
    found = plan(tmp_path, base=[*BASE, "train.iterations=30"], grid={}, policies=["learned"])
    with study(tmp_path) as process:
        begun = "*/.simic/work/*/checkpoints/*/manifest.json"  # checkpoints of unfinished cells
        wait_for(lambda: len(list(found.folder.glob(begun))) >= 2, process)
        os.killpg(process.pid, signal.SIGINT)
        code, _, error = ended(process)
    assert code == 3
    assert error.splitlines()[-1] == "simic: stopped with 0 of 2 cells done; to go on: simic study rates.yaml"
    assert "Traceback" not in error
    with study(tmp_path) as process:
        code, out, _ = ended(process)
    assert code == 0 and "2 seeds" in out
