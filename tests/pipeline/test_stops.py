"""Asked to stop in any stage: one line, an exit code of its own, and the outputs of the earlier run as they were."""

import importlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from simic import cli, seals
from simic.errors import EXIT_INTERRUPTED
from simic.pipeline import dvc_record, engine, mlflow_observer, stages
from simic.pipeline.paths import Workspace
from simic.training.interrupts import Interrupted
from tests.helpers import ROOT, Toys, toy_project
from tests.pipeline.small_suite import tree

# What each stage calls when most of its work is done and some of it may be written.
LATE = {
    "prepare": ("simic.data.prepare:save", signal.SIGINT),
    "headroom": ("simic.evaluation.headroom:floors", signal.SIGTERM),
    "evaluate": ("simic.evaluation.evaluate:comparisons", signal.SIGINT),
    "audit": ("simic.audit.report:markdown", signal.SIGTERM),
}


@pytest.fixture
def workspace(suite_run: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A finished run that may be spoilt."""
    copied = Workspace(Path(shutil.copytree(suite_run.root, tmp_path / "copied")))
    params = tree("audit={certify: false, canary: false}").model_dump(mode="json")
    copied.params.write_text(yaml.safe_dump(params, sort_keys=False))
    shutil.copy(ROOT / "dvc.yaml", copied.root)
    monkeypatch.chdir(copied.root)
    return copied


def files(workspace: Workspace) -> dict[str, str]:
    """Every file but locks and caches, hidden ones too."""
    found = [path for path in workspace.root.rglob("*") if path.is_file() and ".simic" not in path.parts]
    return {str(path.relative_to(workspace.root)): seals.content_hash(path) for path in found}


def signalled(place: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal comes when a function is called."""
    module, name = place.split(":")
    late = getattr(importlib.import_module(module), name)

    def call(*given: Any, **named: Any) -> Any:
        os.kill(os.getpid(), number)
        return late(*given, **named)

    monkeypatch.setattr(f"{module}.{name}", call)


@pytest.mark.slow
@pytest.mark.parametrize("stage", LATE)
def test_a_stage_that_was_stopped_leaves_what_was_there(
    stage: str,
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = files(workspace)
    signalled(*LATE[stage], monkeypatch)
    monkeypatch.setattr(sys, "argv", ["simic", "stage", stage])
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == EXIT_INTERRUPTED
    error = capfd.readouterr().err
    assert f"simic: stopped in {stage}: no output is left half-written; the same command does it again\n" in error
    assert "Traceback" not in error
    assert files(workspace) == before
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


SLOW = """
import time
from pathlib import Path
from simic.data.tasks import task

@task("slow")
def slow(params, rng_seed, data_dir):
    Path("reading").touch()
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_stopped_in_prepare_says_so_and_keeps_earlier_data(tmp_path: Path, number: int) -> None:
    workspace = toy_project(tmp_path)
    (tmp_path / "extensions").mkdir()
    (tmp_path / "extensions" / "slow.py").write_text(SLOW)
    text = workspace.params.read_text().replace("task: suite", "task: slow")
    workspace.params.write_text(text.replace("extensions: []", "extensions: [slow]"))
    workspace.prepared.mkdir(parents=True)
    (workspace.prepared / "meta.json").write_text("earlier")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "simic", "stage", "prepare"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as child:
        deadline = time.monotonic() + 120
        while not (tmp_path / "reading").exists():
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.05)
        child.send_signal(number)
        _, error = child.communicate(timeout=30)
    assert child.returncode == EXIT_INTERRUPTED
    assert error == "simic: stopped in prepare: no output is left half-written; the same command does it again\n"
    assert [path.name for path in workspace.prepared.iterdir()] == ["meta.json"]


def test_what_is_done_is_recorded_before_the_run_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, toys = toy_project(tmp_path), Toys()
    monkeypatch.setattr(stages, "STAGES", {"prepare": toys.prepare, "train": toys.train})
    monkeypatch.setattr(mlflow_observer.MlflowObserver, "publish", lambda self: None)
    workspace.checkpoints.mkdir()
    signalled("simic.pipeline.dvc_record:commit", signal.SIGTERM, monkeypatch)
    for stage in ("prepare", "train"):
        execution = engine.Execution(stop=threading.Event())
        with pytest.raises(Interrupted, match=f"stopped after {stage}, which is done and recorded; the same command"):
            engine.refresh(stage, workspace, execution, lambda line: None)
        assert not dvc_record.is_stale(workspace.root, stage)
    assert toys.ran == ["prepare", "train"]
