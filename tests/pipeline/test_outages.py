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
from simic.training.observers import EndStatus, Observer
from tests.helpers import ROOT, free_port
from tests.pipeline.mlflow_runs import GONE, MODELS, owed
from tests.pipeline.small_suite import tree
from tests.pipeline.test_mlflow_store import a_folder, garbage

pytestmark = pytest.mark.prove
Outage = Callable[[Workspace], AbstractContextManager[None]]
ITERATIONS = tree().train.iterations
# Holds a store until its standard input ends.
HOLDER = """
import sqlite3, sys
store = sqlite3.connect(sys.argv[1], isolation_level=None)
store.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(workspace: Workspace) -> Iterator[None]:
    """By another process, exclusively."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(workspace.root / "mlflow.db")]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None and holder.stdin is not None and holder.stdout.readline() == "held\n"
        yield
        holder.stdin.close()


@contextmanager
def removed(workspace: Workspace) -> Iterator[None]:
    """And not put back."""
    (workspace.root / "mlflow.db").unlink()
    yield


@contextmanager
def read_only(workspace: Workspace) -> Iterator[None]:
    """Even for root."""
    store = workspace.root / "mlflow.db"
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", str(store)], check=False).returncode:
        pytest.skip("no chattr here: root writes wherever it likes")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(store)], check=True)


def on_the_store(breaking: Callable[[Path], Iterator[None]]) -> Outage:
    return contextmanager(lambda workspace: breaking(workspace.root / "mlflow.db"))


@contextmanager
def dead_port(workspace: Workspace) -> Iterator[None]:
    """A server is named that nobody is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", GONE)
        yield


OUTAGES: dict[str, Outage] = {
    "locked": locked,
    "removed": removed,
    "read-only": read_only,
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
    """Opens an outage when a step of some iteration is done, and ends it at the same step of the next one."""

    def __init__(self, outage: AbstractContextManager[None], iteration: int) -> None:
        self.outage, self.iteration = outage, iteration

    def on_step(self, iteration: int, step: int) -> None:
        if step == 1 and iteration == self.iteration:
            self.outage.__enter__()
        if step == 1 and iteration == self.iteration + 1:
            self.outage.__exit__(None, None, None)


class Ends(Observer):
    """How the run ended."""

    def __init__(self) -> None:
        self.status = list[EndStatus]()

    def on_end(self, status: EndStatus) -> None:
        self.status.append(status)


def perform(workspace: Workspace, *watching: Observer) -> None:
    """Training and audit as `simic run` does them."""
    engine.perform("train", workspace, engine.Execution((*watching,)))
    engine.perform("audit", workspace, engine.Execution())


def trouble_said(workspace: Workspace) -> int:
    """How often the run says in its findings that MLflow was gone."""
    return pq.read_table(workspace.telemetry / "findings.parquet")["check"].to_pylist().count("tracking_gone")


def assert_same_weights(workspace: Workspace, undisturbed: Workspace) -> None:
    for place in (undisturbed.checkpoints, undisturbed.models):
        for file in (each for each in place.rglob("*") if each.is_file()):
            again = workspace.root / file.relative_to(undisturbed.root)
            if file.name == "chain.json" or file.suffix in (".safetensors", ".pt2"):
                assert again.read_bytes() == file.read_bytes(), file


def assert_everything_is_known_once(workspace: Workspace) -> None:
    client, experiment_id = mlflow_store.connect(workspace)
    (run,) = client.search_runs([experiment_id])
    run_id = run.info.run_id
    assert {"iteration", "episode/return", "compare/score", "compare/grave_findings"} < set(run.data.metrics)
    uses = {each.tags[0].value for each in run.inputs.dataset_inputs}
    assert uses == {"training", "validation", "testing"}
    for metric in run.data.metrics:
        steps = [point.step for point in client.get_metric_history(run_id, metric)]
        assert steps == sorted(set(steps)), metric
        assert metric != "iteration" or steps == list(range(ITERATIONS))
    assert (run.info.status, run.data.tags["simic.status"]) == ("FINISHED", "finished")
    assert {model.name for model in client.search_logged_models([experiment_id])} == MODELS
    versions = client.search_model_versions("name = 'simic-policy'")
    assert [version.run_id for version in versions] == [run_id]
    assert "report.html" in {artifact.path for artifact in client.list_artifacts(run_id)}
    assert owed(workspace) == []


def assert_the_next_command_pays(workspace: Workspace) -> None:
    """A process of its own: an open store that was removed is lost for the process that has it open."""
    code = "import sys; from tests.pipeline.test_outages import pay; pay(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(workspace.root)], cwd=ROOT, check=True)


def pay(root: str) -> None:
    """As every command does that tells MLflow of a run."""
    mlflow_observer.settle(Workspace(Path(root)))
    assert_everything_is_known_once(Workspace(Path(root)))


@pytest.mark.parametrize("name", OUTAGES)
def test_mlflow_gone_for_a_third_of_the_run(name: str, project: Workspace, suite_run: Workspace) -> None:
    ended = Ends()
    perform(project, During(OUTAGES[name](project), 1), ended)
    assert ended.status == ["finished"]
    assert_same_weights(project, suite_run)
    if name == "removed":
        assert_the_next_command_pays(project)
    else:
        assert_everything_is_known_once(project)


@pytest.mark.parametrize("name", OUTAGES)
def test_mlflow_gone_from_the_start_to_the_audit(name: str, project: Workspace, suite_run: Workspace) -> None:
    with OUTAGES[name](project):
        perform(project)
    assert trouble_said(project) == (name != "removed")  # a store that is removed before the run is made again
    assert_same_weights(project, suite_run)
    assert_the_next_command_pays(project)


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


def test_a_server_that_was_killed_for_a_third_of_the_run_has_everything_once(
    project: Workspace, suite_run: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(project.root.parent / "server")
    server.start()
    try:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        perform(project, During(server.gone(), 1))
        assert trouble_said(project) == 1
        assert_same_weights(project, suite_run)
        assert_everything_is_known_once(project)
    finally:
        server.kill()
