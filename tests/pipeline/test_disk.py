"""A disk that is full or read-only, on a file system of a few megabytes where the tests run as root: one line, exit
code 2, what was finished is kept, and with room again the same command goes on.

Elsewhere a limit on the size of files stands in for the full disk, and a folder without write permission for the
read-only one.
"""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import yaml

from simic import cli, seals
from simic.errors import EXIT_REFUSED, exit_with_message
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.training.observers import Observer
from tests.helpers import ROOT, some
from tests.pipeline.small_suite import tree

MOUNTS = os.geteuid() == 0 and shutil.which("mount") is not None
Full = Callable[[int], AbstractContextManager[None]]


def mount(*arguments: str) -> bool:
    return MOUNTS and subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB of its own, if that can be had, else a folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = mount("-t", "tmpfs", "-o", "size=12m", "none", str(folder))
    yield folder
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, left: int) -> Path:
    """A file that takes all but so many bytes."""
    ballast = folder / "ballast"
    free = os.statvfs(folder)
    ballast.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - left)))
    return ballast


@contextmanager
def full(folder: Path, left: int) -> Iterator[None]:
    """All but so many bytes are taken; on a file system that is not ours, no file may be larger than that."""
    if folder.is_mount():
        ballast = fill(folder, left)
        yield
        ballast.unlink()
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def workspace(disk: Path, suite_run: Workspace) -> Workspace:
    """With prepared data and headroom, on the small disk."""
    found = Workspace(disk)
    for place in (suite_run.prepared, suite_run.root / seals.FOLDER):
        shutil.copytree(place, disk / place.relative_to(suite_run.root))
    shutil.copy(suite_run.headroom, found.headroom)
    return found


def told(work: Callable[[], None], capfd: pytest.CaptureFixture[str]) -> str:
    """The one line in which it ends."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as stopped, exit_with_message("simic"):
        work()
    error = capfd.readouterr().err
    assert stopped.value.code == EXIT_REFUSED and error.count("\n") == 1 and error.startswith("simic: "), error
    return error


@pytest.mark.slow
def test_no_room_for_the_first_checkpoint(workspace: Workspace, capfd: pytest.CaptureFixture[str]) -> None:
    with full(workspace.root, 8_192):
        assert str(workspace.state) in told(lambda: stages.train(tree(), workspace), capfd)
    stages.train(tree(), workspace)
    assert (workspace.checkpoints / "best" / "manifest.json").exists()


class FullAtTheEnd(Observer):
    """The disk is full once the last iteration is saved."""

    def __init__(self, root: Path) -> None:
        self.root, self.iterations = root, 0

    def on_iteration(self, *_: object) -> None:
        self.iterations += 1

    def on_end(self, status: str) -> None:
        self.ballast = fill(self.root, 4_096)


@pytest.mark.slow
def test_no_room_to_publish_keeps_the_training(
    workspace: Workspace, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And what was published before."""
    if not disk.is_mount():
        pytest.skip("needs a file system of its own: a limit on the size of files would end training first")
    for place in ("checkpoints", "models", "telemetry"):
        (disk / place).mkdir()
        (disk / place / "earlier").write_text("kept")
    watcher = FullAtTheEnd(disk)
    error = told(lambda: stages.train(tree(), workspace, [watcher]), capfd)
    assert "No space left on device; free some space and run the same command again: what was finished is kept" in error
    assert (disk / "models" / "earlier").read_text() == (disk / "telemetry" / "earlier").read_text() == "kept"
    watcher.ballast.unlink()
    again = FullAtTheEnd(disk)
    again.on_end = lambda status: None  # type: ignore[method-assign]
    stages.train(tree(), workspace, [again])
    assert (watcher.iterations, again.iterations) == (3, 0), "published, not trained again"
    assert sorted(path.name for path in workspace.models.iterdir()) == ["README.md", "policy", "program"]


@pytest.mark.slow
def test_no_room_to_evaluate_keeps_the_earlier_network(
    workspace: Workspace, suite_run: Workspace, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(suite_run.checkpoints, workspace.checkpoints)
    shutil.copytree(suite_run.grown, workspace.grown)
    for name in ("evaluation.json", "metrics.json"):
        shutil.copy(suite_run.reports / name, workspace.reports)
    before = seals.content_hash(workspace.reports)
    with full(workspace.root, 8_192):
        assert "run the same command again" in told(lambda: stages.evaluate(tree(), workspace), capfd)
    assert seals.content_hash(workspace.reports) == before


@pytest.mark.parametrize("stage", ["prepare", "train", "run"])
def test_a_read_only_state_folder_is_named(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], stage: str
) -> None:
    (disk / ".simic").mkdir()
    (disk / "params.yaml").write_text(yaml.safe_dump(tree().model_dump(mode="json")))
    if not (disk.is_mount() and mount("-o", "remount,ro", str(disk))):
        if os.geteuid() == 0:
            pytest.skip("root writes wherever it likes")
        (disk / ".simic").chmod(0o500)
    monkeypatch.chdir(disk)
    monkeypatch.setattr(sys, "argv", ["simic", stage])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    error = capfd.readouterr().err
    assert stopped.value.code == EXIT_REFUSED and error.count("\n") == 1, error
    assert ".simic" in error and ("make it writable" in error or "make it accessible" in error), error


@pytest.mark.parametrize("text", some(["train: {envs: 0}", "a: [", ""], "a: ["))
def test_torchruns_program_says_what_is_wrong_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    command = [sys.executable, "-m", "simic.pipeline.distributed"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_REFUSED
    assert done.stderr.startswith(f"simic: {tmp_path}/params.yaml: ") and done.stderr.count("\n") == 1, done.stderr
