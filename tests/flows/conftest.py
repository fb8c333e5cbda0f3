"""A project of its own with stages of a few lines, and one Prefect server for all tests."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prefect.testing.utilities import prefect_test_harness

from simic.params import Params
from simic.pipeline import engine, stages
from simic.pipeline.paths import Workspace
from simic.training.observers import RunInfo
from tests.helpers import Toys, dvc_in_process, episode, toy_project, update


class ObservedToys(Toys):
    """Training tells its observers."""

    def make(
        self,
        name: str,
        params: Params,
        workspace: Workspace,
        observers: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        super().make(name, params, workspace)
        for observer in observers:
            observer.on_start(
                RunInfo(params, workspace.work("0123456789abcdef"), "d" * 64, 0, print)
            )
        for iteration in range(params.train.iterations):
            for observer in observers:
                observer.on_iteration(update(iteration), episode())
                observer.on_checkpoint(workspace.root, iteration + 1)
        for observer in observers:
            observer.on_end("finished")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project in a folder of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return toy_project(tmp_path)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Toys:
    replaced = ObservedToys()
    monkeypatch.setattr(stages, "STAGES", replaced.stages(*stages.STAGES))
    monkeypatch.setattr(engine, "observers", lambda *_: ())
    monkeypatch.setattr(engine, "log_run", lambda *_: None)  # there is no report
    dvc_in_process(monkeypatch)
    return replaced


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=120):
        yield
