"""MLflow's store in a Postgres: two trainings write to it at once, its server is killed meanwhile and started again,
and in the end every point is there once. The server is a real one, of the machine's packages, in a folder of its own.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simic.pipeline import mlflow_store
from simic.pipeline.paths import Workspace
from tests.helpers import ROOT, free_port
from tests.pipeline.mlflow_runs import begun, owed, run_of, steps, train
from tests.postgres import Postgres, a_postgres

POINTS = 150
FINGERPRINTS = ("1" * 16, "2" * 16)
WRITER = """
import sys, time
from pathlib import Path
from simic.pipeline import mlflow_observer
from simic.pipeline.paths import Workspace
from simic.telemetry.recorder import Recorder
from tests.helpers import iteration
from tests.pipeline.mlflow_runs import begun
workspace, fingerprint, points = Workspace(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
mlflow_observer.PAUSE = 1.0  # by default it is tried again after a minute
with Recorder(workspace.work(fingerprint)) as log:
    watcher = begun(workspace, fingerprint=fingerprint)
    for number in range(points):
        log.write(iteration(number))
        watcher.on_checkpoint(Path(), number + 1)
        print(number, flush=True)
        time.sleep(0.1)
    watcher.on_end("finished")
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with a_postgres() as found:
        yield found


@pytest.fixture
def workspace(tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres.uri())
    monkeypatch.chdir(tmp_path)  # MLflow's folder of artifacts
    return Workspace(tmp_path)


@pytest.mark.prove
def test_two_writers_lose_nothing_while_the_server_is_killed_and_comes_back(
    workspace: Workspace, postgres: Postgres
) -> None:
    mlflow_store.connect(workspace)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(workspace.root), fingerprint, str(POINTS)],
            cwd=workspace.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for fingerprint in FINGERPRINTS
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        while int(writer.stdout.readline()) < POINTS // 3:
            pass
    postgres.control("-m", "immediate", "stop")
    time.sleep(1.0)
    assert all(writer.poll() is None for writer in writers)
    postgres.start()
    for writer in writers:
        _, said = writer.communicate(timeout=300)
        assert writer.returncode == 0, said
        assert said.count("logging to MLflow failed") == 1, said
    for fingerprint in FINGERPRINTS:
        client, _, run_id = run_of(workspace, fingerprint)
        assert steps(workspace, "iteration", fingerprint) == list(range(POINTS))
        assert steps(workspace, "update/loss", fingerprint) == list(range(POINTS))
        assert client.get_run(run_id).info.status == "FINISHED"
    assert owed(workspace) == []


@pytest.mark.prove
def test_a_server_that_is_away_at_the_start_costs_a_second_and_is_told_later(
    workspace: Workspace, postgres: Postgres
) -> None:
    postgres.control("-m", "immediate", "stop")
    fingerprint, began = "3" * 16, time.monotonic()
    watcher = begun(workspace, fingerprint=fingerprint)
    assert time.monotonic() - began < 10.0  # MLflow by itself would try for an hour
    train(watcher, workspace, range(3), fingerprint)
    postgres.start()
    watcher.on_end("finished")
    assert steps(workspace, "iteration", fingerprint) == [0, 1, 2]


def test_a_database_server_that_nobody_runs_is_out_of_reach_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/mlflow")
    with pytest.raises(OSError, match="refused"):
        mlflow_store.refuse_unusable(Workspace(tmp_path))
