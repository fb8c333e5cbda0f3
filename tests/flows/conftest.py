"""A project of its own with stages of a few lines, and one Prefect server for all tests."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prefect.testing.utilities import prefect_test_harness

from simic.params import Params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.pipeline.test_mlflow_store import Info, episode, publish_files, update

ROOT = Path(__file__).parents[2]
DVC_YAML = """
stages:
  prepare: {cmd: "exit 9", params: [rng_seed, prepare], outs: [data/prepared]}
  train: {cmd: "exit 9", deps: [data/prepared], params: [rng_seed, train], outs: [checkpoints, models]}
  evaluate: {cmd: "exit 9", deps: [checkpoints], params: [evaluate], outs: [reports/evaluation.json]}
  audit: {cmd: "exit 9", deps: [checkpoints], params: [audit], outs: [reports/report.md]}
"""


class Toys:
    """Stage functions with the interface of the real ones; training can be made to wait for its stop."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.started, self.endless = threading.Event(), False

    def prepare(self, params: Params, workspace: Workspace) -> None:
        self.ran.append("prepare")
        workspace.prepared.mkdir(parents=True, exist_ok=True)
        (workspace.prepared / "x").write_text(str(params.rng_seed))

    def train(
        self,
        params: Params,
        workspace: Workspace,
        observers: Sequence[Any] = (),
        stop: threading.Event | None = None,
        fresh: bool = False,
    ) -> None:
        self.ran.append("train")
        info = Info(workspace)
        info.params = params
        for observer in observers:
            observer.on_start(info)
        for iteration in range(params.train.iterations):
            for observer in observers:
                observer.on_iteration(update(iteration), episode(iteration))
                observer.on_checkpoint(workspace.root, iteration + 1)
        for observer in observers:
            observer.on_end("finished")
        publish_files(workspace)

    def evaluate(self, params: Params, workspace: Workspace) -> None:
        self.ran.append("evaluate")

    def audit(self, params: Params, workspace: Workspace, code_revision: str = "") -> None:
        self.ran.append("audit")
        (workspace.reports / "report.md").write_text("# Verdict: sound\n")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project in a folder of its own, which is the current one."""
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_bytes((ROOT / ".dvc" / "config").read_bytes())
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Toys:
    replaced = Toys()
    monkeypatch.setattr(stages, "STAGES", {name: getattr(replaced, name) for name in stages.STAGES})
    return replaced


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=120):
        yield
