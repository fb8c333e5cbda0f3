"""Undamaged files: an unfinished training, and a finished run. Read only."""

import shutil
import threading
from pathlib import Path

import pytest

from simic.pipeline import stages, training_work
from simic.pipeline.paths import Workspace
from simic.telemetry.columns import Columns
from simic.telemetry.rows import UpdateRow
from simic.training.interrupts import Interrupted
from simic.training.observers import Observer
from tests.durability import judging
from tests.durability.judging import Finished, PartialRollout
from tests.pipeline.conftest import suite_run  # noqa: F401
from tests.pipeline.small_suite import tree

POLICY = ("encoder_units", "head_units", "core_units")
SMALL = (
    "train.validate_every=1",
    "train.batches_per_epoch=1",
    *(f"train.policy.{name}=8" for name in POLICY),
)
SHORT = (*SMALL, "train.episode_steps=3", "train.horizon=5")
STOPPED = 3  # iterations


class Interrupter(Observer):
    """Stop training after an iteration."""

    def __init__(self, after: int, stop: threading.Event) -> None:
        self.after = after
        self.stop = stop

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        if update.iteration + 1 == self.after:
            self.stop.set()


@pytest.fixture(scope="session")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> PartialRollout:
    first, longer = (
        tree(*SHORT, f"train.iterations={count}") for count in (STOPPED + 1, STOPPED + 2)
    )
    workspace = Workspace(tmp_path_factory.mktemp("unfinished") / "project")
    stages.prepare(first, workspace)
    training_work.begin(first, workspace, fresh=False)
    stop = threading.Event()
    with pytest.raises(Interrupted):
        stages.train(first, workspace, (Interrupter(STOPPED, stop),), stop)
    assert training_work.begin(longer, workspace, fresh=False) != []
    place = (
        workspace.work(stages.fingerprint(longer, workspace)).relative_to(workspace.root).as_posix()
    )
    published = {}
    opened = judging.Opener(longer, workspace.prepared)
    for last in range(STOPPED, 0, -1):
        shutil.rmtree(workspace.root.with_name("undamaged"), ignore_errors=True)
        copy = Workspace(
            Path(shutil.copytree(workspace.root, workspace.root.with_name("undamaged")))
        )
        for later in range(last + 1, STOPPED + 1):
            shutil.rmtree(copy.root / place / "checkpoints" / f"{later:06d}")
        iteration, published[last] = opened.published(copy)
        assert iteration == last
    return PartialRollout(workspace, place, longer, published)


@pytest.fixture(scope="session")
def opener(unfinished: PartialRollout) -> judging.Opener:
    return judging.Opener(unfinished.params, unfinished.workspace.prepared)


@pytest.fixture(scope="session")
def finished(suite_run: Workspace) -> Finished:  # noqa: F811
    return Finished.of(suite_run, tree())
