"""`make serve` with its real processes: a project of its own in which only the stages are toys."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort

from tests.helpers import DVC_YAML, copy_checkout, free_port

# In place of what stands before it in the file.
STAGES = """
import time
import tomllib
import urllib.error
import urllib.request
from simic.training.interrupts import in_training

def prepare(params, workspace):
    workspace.prepared.mkdir(parents=True, exist_ok=True)
    (workspace.prepared / "x").touch()

def headroom(params, workspace):
    workspace.reports.mkdir(exist_ok=True)
    workspace.headroom.write_text("{}")

def train(params, workspace, observers=(), stop=None, fresh=False):
    saved = workspace.work(seals.identify(workspace.root, "train", params).sha256) / "saved"
    saved.parent.mkdir(parents=True, exist_ok=True)
    done = int(saved.read_text()) if saved.exists() else 0
    with (workspace.root / "starts").open("a") as file:
        file.write(f"{done} ")
    while done < params.train.iterations:
        time.sleep(0.2)
        done += 1
        saved.write_text(str(done))
        if stop is not None and stop.is_set():
            raise in_training(done)
    for folder in (workspace.checkpoints, workspace.models, workspace.telemetry):
        folder.mkdir(exist_ok=True)
        (folder / "x").write_text(str(done))
    saved.unlink()

def evaluate(params, workspace):
    workspace.grown.mkdir(parents=True, exist_ok=True)
    (workspace.grown / "x").touch()
    workspace.evaluation.write_text("{}")
    workspace.metrics.write_text("{}")

def audit(params, workspace):
    (workspace.reports / "report.md").write_text("-")

def sealed(stage):
    def run(params, workspace, *given, **named):
        identity = seals.identify(workspace.root, stage.__name__, params)
        stage(params, workspace, *given, **named)
        seals.write(workspace.root, identity)
    return run

STAGES = {stage.__name__: sealed(stage) for stage in (prepare, headroom, train, evaluate, audit)}
"""
# What looks into the stages' real outputs is left out with them.
REPLACED = {
    "simic/pipeline/stages.py": STAGES,
    "simic/pipeline/engine.py": "\ndef log_run(*_): ...\ndef observers(*_): return ()\n",
    "simic/pipeline/training_work.py": "\ndef begin(*_): return []\n",
    "simic/pipeline/run_summary.py": (
        "\nfrom simic import seals\nfrom simic.telemetry.naming import run_name\ndef of(workspace):\n"
        "    name = run_name(seals.read(workspace.root, 'train').sha256)\n"
        "    return RunSummary(Summary(what='', record='', replay='', learning=''), 'none', name, '', 0, True)\n"
    ),
    "flows/artifacts.py": "\ndef publish(*_): ...\ndef publish_verdict(*_): ...\n",
}


class Project:
    """A checkout in a folder of its own, and the servers of it."""

    def __init__(self, root: Path):
        self.root, self.port, self.mlflow_port = root, free_port(), free_port()
        copy_checkout(root)
        for file, more in REPLACED.items():
            with (root / file).open("a") as module:
                module.write(more)
        (root / "dvc.yaml").write_text(DVC_YAML)
        self.log = root / "serve.log"
        self.env = {**os.environ, "PYTHONPATH": str(root), "PREFECT_API_URL": self.api}
        self.env |= {"PORT": str(self.port), "MLFLOW_PORT": str(self.mlflow_port)}

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @contextlib.contextmanager
    def served(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "flows.up"]
        output = self.log.open("wb")
        with (
            output,
            subprocess.Popen(
                command, cwd=self.root, env=self.env, stdout=output, stderr=output
            ) as process,
        ):
            try:
                wait(
                    lambda: b"ready for runs" in self.log.read_bytes() and answers(self.mlflow_port)
                )
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)

    def processes(self) -> list[str]:
        """What runs in this project."""
        running = psutil.process_iter(["cwd", "cmdline", "status"])
        return [str(process.info) for process in running if process.info["cwd"] == str(self.root)]

    def submit(self, iterations: int) -> subprocess.Popen[bytes]:
        """The command that watches the run."""
        overrides = f'overrides={{"train": {{"iterations": {iterations}}}}}'
        command = [
            sys.executable,
            "-m",
            "prefect",
            "deployment",
            "run",
            "simic/train",
            "--watch",
            "-p",
            overrides,
        ]
        return subprocess.Popen(command, cwd=self.root, env=self.env, stdout=subprocess.DEVNULL)

    def run(self) -> FlowRun:
        """The one that started last."""
        with self.client() as client:
            return client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)[0]

    def client(self) -> SyncPrefectClient:
        settings = tomllib.loads((self.root / "prefect.toml").read_text())
        return SyncPrefectClient(self.api, auth_string=settings["api"]["auth_string"])

    def flow_pids(self) -> list[int]:
        return [
            int(path.read_text().split()[1])
            for path in (self.root / ".prefect" / "locks").iterdir()
        ]

    def saved(self) -> int:
        paths = (self.root / ".simic" / "work").glob("*/saved")
        return max((int(path.read_text() or 0) for path in paths), default=0)

    def starts(self) -> list[int]:
        return [int(word) for word in (self.root / "starts").read_text().split()]


def wait(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def status(url: str, body: bytes | None = None, **headers: str) -> int:
    """Ask as somebody without a password does; a body makes it a POST."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_killed_runs_resume_and_everything_stops_together(tmp_path: Path) -> None:
    project = Project(tmp_path)

    with project.served() as process:
        # kill -9 of the run: it goes on from its checkpoint, unwatched
        watching = project.submit(iterations=40)
        wait(lambda: project.saved() >= 3)
        os.kill(project.flow_pids()[0], signal.SIGKILL)
        wait(lambda: len(project.starts()) == 2)
        assert project.starts()[1] >= 3
        assert watching.wait(timeout=90) != 0

        # Ctrl-C with a run in progress: saved, to be resumed
        wait(lambda: project.saved() >= project.starts()[1] + 3)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=40)
    assert project.processes() == []
    saved = project.saved()

    # a closed terminal with a run in progress
    with project.served() as process:
        wait(lambda: len(project.starts()) == 3)
        assert project.starts()[2] == saved
        process.send_signal(signal.SIGHUP)
        process.wait(timeout=40)
    assert project.processes() == []
    saved = project.saved()

    with project.served() as process:
        wait(lambda: project.run().state_type == StateType.COMPLETED)
        assert project.run().state_name == "No finding"
        assert project.starts()[3] == saved
        assert (tmp_path / "checkpoints" / "x").read_text() == "40"

        # cancel is not a crash: saved and not resumed
        watching = project.submit(iterations=1000)
        wait(lambda: project.saved() >= 3)
        run = project.run()
        cancel = [sys.executable, "-m", "prefect", "flow-run", "cancel", str(run.id)]
        subprocess.run(cancel, cwd=project.root, env=project.env, check=True, capture_output=True)
        wait(lambda: project.run().state_name == "Cancelled")
        assert watching.wait(timeout=90) != 0
        process.terminate()
        process.wait(timeout=40)
    assert project.processes() == []
    assert not answers(project.port) and not answers(project.mlflow_port)


@pytest.mark.slow
def test_the_servers_obey_nobody_without_the_password_and_no_page_of_another_site(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)
    json = {"content-type": "application/json"}
    with project.served() as process:
        assert stat.S_IMODE((tmp_path / "prefect.toml").stat().st_mode) == 0o600
        # Another user of the machine.
        assert status(f"{project.api}/deployments/filter", b"{}", **json) == 401
        assert (
            status(f"{project.api}/deployments/", b"{}", **json, authorization="Basic eA==") == 401
        )
        # A page of another site, also one whose name points here.
        preflight = urllib.request.Request(f"{project.api}/deployments/", method="OPTIONS")
        preflight.add_header("Origin", "https://evil.example")
        preflight.add_header("Access-Control-Request-Method", "POST")
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(preflight)
        with refusal.value as answer:
            assert "access-control-allow-origin" not in answer.headers
        assert status(f"{project.api}/health", host=f"evil.example:{project.port}") == 400
        mlflow = f"http://127.0.0.1:{project.mlflow_port}/api/2.0/mlflow/experiments/search?max_results=1"
        assert status(mlflow, host=f"evil.example:{project.mlflow_port}") == 403
        # The owner, by a command in the project, and the UI.
        assert project.submit(iterations=2).wait(timeout=300) == 0
        assert project.run().state_type == StateType.COMPLETED
        assert status(f"http://localhost:{project.port}/") == 200
        process.terminate()
        process.wait(timeout=40)


@pytest.mark.slow
def test_a_port_that_is_taken_ends_everything(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", project.port))
        listener.listen()
        result = subprocess.run(
            [sys.executable, "-m", "flows.up"],
            cwd=project.root,
            env=project.env,
            capture_output=True,
        )
    assert (
        result.returncode != 0
        and str(project.port).encode() in result.stdout
        and b"already in use" in result.stdout
    )
    assert project.processes() == []
