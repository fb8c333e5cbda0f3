"""Training that is killed at any moment and resumed makes what training that is never killed makes, byte for byte."""

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from simic import params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.training.observers import Observer
from tests.helpers import FORKING, contents
from tests.pipeline import small_suite
from tests.pipeline.small_suite import tree

PUBLISHED = ("checkpoints", "models", "telemetry")
SHORT = ("train.episode_steps=5", "train.validate_every=2")


class IterationLog(Observer):
    """Note each iteration that begins in a file, which a kill leaves."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_step(self, iteration: int, step: int) -> None:
        if step == 1:
            with self.file.open("a") as file:
                file.write(f"{iteration}\n")


def train(root: Path, iterations: Path) -> None:
    workspace = Workspace(root)
    small_suite.train(params.load(workspace.params), workspace, IterationLog(iterations))


def attempt(root: Path, iterations: Path, seconds: float | None) -> int | None:
    """Train in a process of its own, which is killed after so many seconds; return its exit code."""
    process = FORKING.Process(target=train, args=(root, iterations))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode


def files(root: Path) -> dict[str, bytes]:
    """Everything that training makes: what it publishes, log and checkpoints of its work directory."""
    [work] = (root / ".simic" / "work").glob("[!.]*")
    return contents(root, (*PUBLISHED, *(f".simic/work/{work.name}/{name}" for name in PUBLISHED)))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = Workspace(tmp_path_factory.mktemp("killed") / "prepared")
    small = tree(*SHORT)
    stages.prepare(small, workspace)
    workspace.params.write_text(small.model_dump_json())
    return workspace.root


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.prove)])
def test_killed_at_any_moment_is_never_killed(kills: int, prepared: Path, tmp_path: Path) -> None:
    undisturbed = Path(shutil.copytree(prepared, tmp_path / "whole"))
    attempt(undisturbed, tmp_path / "imports", 0.0)  # the server of forks imports what it needs
    started = time.monotonic()
    assert attempt(undisturbed, tmp_path / "whole.log", None) == 0
    seconds = time.monotonic() - started
    moments = random.Random(kills)
    killed = 0
    training = 0
    while killed < kills:
        training += 1
        root = Path(shutil.copytree(prepared, tmp_path / f"killed-{training}"))
        log = tmp_path / f"killed-{training}.log"
        code = None
        trained = set[str]()
        while code != 0:
            log.write_text("")
            code = attempt(root, log, moments.uniform(0.0, seconds) if killed < kills else None)
            assert code in (0, -signal.SIGKILL)
            killed += code != 0
            # At most the iteration that the kill cut short is trained again.
            begun = set(log.read_text().split())
            assert len(trained & begun) <= 1
            trained |= begun
        assert files(root) == files(undisturbed)
        shutil.rmtree(root)
