"""MLflow is gone during a whole small run or a third of it: the weights are those of an undisturbed run, and in the end
MLflow has every point once, the end state, the report, and the policy registered once.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from simic import seals
from simic.pipeline import engine, mlflow_observer, mlflow_store
from simic.pipeline.paths import Workspace
from simic.training.observers import Observer
from tests.helpers import ROOT, contents, free_port
from tests.pipeline.mlflow_runs import GONE, MODELS, owed, run_of, steps
from tests.pipeline.small_suite import tree
from tests.pipeline.test_mlflow_store import a_folder, garbage, locked
from tests.postgres import Postgres, a_postgres

Outage = Callable[[Workspace], AbstractContextManager[None]]
ITERATIONS = tree().train.iterations


@contextmanager
def removed(workspace: Workspace) -> Iterator[None]:
    """And not put back."""
    (workspace.root / "mlflow.db").unlink()
    yield


def on_the_store(breaking: Callable[[Path], Iterator[None]]) -> Outage:
    return contextmanager(lambda workspace: breaking(workspace.root / "mlflow.db"))


@contextmanager
def dead_port(workspace: Workspace) -> Iterator[None]:
    """A server is named that nobody is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", GONE)
        yield


OUTAGES: dict[str, Outage] = {
    "locked": on_the_store(locked),
    "removed": removed,
    "garbage": on_the_store(garbage),
    "a folder": on_the_store(a_folder),
    "dead port": dead_port,
}


@pytest.fixture
def project(tmp_path: Path, suite_run: Workspace, initialised: bytes) -> Workspace:
    """Prepared data, headroom and evaluation are there; training and audit are to come."""
    found = Workspace(tmp_path / "project")
    for place in (suite_run.prepared, suite_run.root / seals.FOLDER, suite_run.grown):
        shutil.copytree(place, found.root / place.relative_to(suite_run.root))
    for name in ("headroom", "evaluation", "metrics"):
        shutil.copy(suite_run.reports / f"{name}.json", found.reports)
    shutil.copy(ROOT / "dvc.yaml", found.root)
    (found.root / "mlflow.db").write_bytes(initialised)
    params = tree("audit.certify=false").model_dump(mode="json")
    found.params.write_text(yaml.safe_dump(params, sort_keys=False))
    return found


class During(Observer):
    """Opens an outage when a step of the second iteration is done, and ends it at the same step of the third."""

    def __init__(self, outage: AbstractContextManager[None]) -> None:
        self.outage = outage

    def on_step(self, iteration: int, step: int) -> None:
        if (iteration, step) == (1, 1):
            self.outage.__enter__()
        if (iteration, step) == (2, 1):
            self.outage.__exit__(None, None, None)


def perform(workspace: Workspace, *watching: Observer) -> int:
    """Training and audit as `simic run` does them; how often the run says in its findings that MLflow was gone."""
    engine.perform("train", workspace, engine.Execution((*watching,)))
    engine.perform("audit", workspace, engine.Execution())
    return pq.read_table(workspace.telemetry / "findings.parquet")["check"].to_pylist().count("tracking_gone")


def assert_same_weights(workspace: Workspace, undisturbed: Workspace) -> None:
    places = ("checkpoints", "models")
    for place, content in contents(undisturbed.root, places).items():
        if place.endswith(("chain.json", ".safetensors", ".pt2")):
            assert (workspace.root / place).read_bytes() == content, place


def assert_everything_is_known_once(workspace: Workspace) -> None:
    """In a process of its own: an open store that was removed is lost for the process that has it open."""
    code = "import sys; from tests.pipeline.test_outages import settled; settled(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(workspace.root)], cwd=ROOT, check=True)


def settled(root: str) -> None:
    """As every command does that tells MLflow of a run."""
    workspace = Workspace(Path(root))
    mlflow_observer.settle(workspace)
    client, experiment_id = mlflow_store.connect(workspace)
    (run,) = client.search_runs([experiment_id])
    run_id = run.info.run_id
    assert {"iteration", "episode/return", "compare/score", "compare/grave_findings"} < set(run.data.metrics)
    uses = {each.tags[0].value for each in run.inputs.dataset_inputs}
    assert uses == {"training", "validation", "testing"}
    for metric in run.data.metrics:
        logged = [point.step for point in client.get_metric_history(run_id, metric)]
        assert logged == sorted(set(logged)), metric
        assert metric != "iteration" or logged == list(range(ITERATIONS))
    assert (run.info.status, run.data.tags["simic.status"]) == ("FINISHED", "finished")
    assert {model.name for model in client.search_logged_models([experiment_id])} == MODELS
    versions = client.search_model_versions("name = 'simic-policy'")
    assert [version.run_id for version in versions] == [run_id]
    assert "report.html" in {artifact.path for artifact in client.list_artifacts(run_id)}
    assert owed(workspace) == []


@pytest.mark.prove
@pytest.mark.parametrize("name", OUTAGES)
def test_mlflow_gone_for_a_third_of_the_run(name: str, project: Workspace, suite_run: Workspace) -> None:
    perform(project, During(OUTAGES[name](project)))
    assert name == "removed" or owed(project) == []
    assert_same_weights(project, suite_run)
    assert_everything_is_known_once(project)


@pytest.mark.prove
@pytest.mark.parametrize("name", OUTAGES)
def test_mlflow_gone_from_the_start_to_the_audit(name: str, project: Workspace, suite_run: Workspace) -> None:
    with OUTAGES[name](project):
        trouble = perform(project)
    assert trouble == (name != "removed")  # a store that is removed before the run is made again
    assert_same_weights(project, suite_run)
    assert_everything_is_known_once(project)


class Server:
    """A real one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir()
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        store, artifacts = f"sqlite:///{self.folder}/server.db", str(self.folder / "artifacts")
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", store, "--artifacts-destination", artifacts, "--workers", "1"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, cwd=self.folder, start_new_session=True, **quiet)
        deadline = time.monotonic() + 240
        while True:
            with suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                return
            assert time.monotonic() < deadline and self.process.poll() is None, "mlflow server does not start"
            time.sleep(0.2)

    def kill(self) -> None:
        """With its workers, which are in its session."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @contextmanager
    def gone(self) -> Iterator[None]:
        self.kill()
        yield
        self.start()


@pytest.mark.prove
def test_a_server_that_was_killed_for_a_third_of_the_run_has_everything_once(
    project: Workspace, suite_run: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(project.root.parent / "server")
    server.start()
    try:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        assert perform(project, During(server.gone())) == 1
        assert_same_weights(project, suite_run)
        assert_everything_is_known_once(project)
    finally:
        server.kill()


# --- a Postgres of the machine's packages, in a folder of its own ---

POINTS = 150
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
def on_postgres(tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres.uri())
    monkeypatch.chdir(tmp_path)  # MLflow's folder of artifacts
    return Workspace(tmp_path)


@pytest.mark.prove
def test_two_writers_lose_nothing_while_postgres_is_killed_and_comes_back(
    on_postgres: Workspace, postgres: Postgres
) -> None:
    mlflow_store.connect(on_postgres)
    fingerprints, pipes = ("1" * 16, "2" * 16), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    commands = [[sys.executable, "-c", WRITER, str(on_postgres.root), each, str(POINTS)] for each in fingerprints]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen(command, cwd=on_postgres.root, env=env, **pipes) for command in commands]
    for writer in writers:
        while int(writer.stdout.readline()) < POINTS // 3:
            pass
    postgres.control("-m", "immediate", "stop")
    time.sleep(1.0)
    assert all(writer.poll() is None for writer in writers)
    postgres.start()
    for writer, fingerprint in zip(writers, fingerprints, strict=True):
        _, said = writer.communicate(timeout=300)
        assert writer.returncode == 0 and said.count("logging to MLflow failed") == 1, said
        client, _, run_id = run_of(on_postgres, fingerprint)
        for metric in ("iteration", "update/policy_loss"):
            assert steps(on_postgres, metric, fingerprint) == list(range(POINTS))
        assert client.get_run(run_id).info.status == "FINISHED"
    assert owed(on_postgres) == []


def test_a_database_server_that_nobody_runs_is_out_of_reach_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/mlflow")
    with pytest.raises(OSError, match="refused"):
        mlflow_store.refuse_unusable(Workspace(tmp_path))
