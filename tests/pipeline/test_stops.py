"""Asked to stop in any stage: one line, an exit code of its own, and the outputs of the earlier run as they were."""

import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from simic import cli, durable, params, pipeline, seals
from simic.errors import EXIT_INTERRUPTED
from simic.pipeline import dvc_record, engine, stages
from simic.pipeline.paths import Workspace
from simic.training.interrupts import Interrupted
from tests.helpers import ROOT, Toys, toy_project
from tests.pipeline.small_suite import tree


@pytest.fixture
def workspace(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A finished run that may be spoilt."""
    written = tree().model_dump(mode="json")
    project.params.write_text(yaml.safe_dump(written, sort_keys=False))
    shutil.copy(ROOT / "dvc.yaml", project.root)
    monkeypatch.chdir(project.root)
    return project


def files(workspace: Workspace) -> dict[str, str]:
    """Every file but locks and caches, hidden ones too."""
    paths = [
        path for path in workspace.root.rglob("*") if path.is_file() and ".simic" not in path.parts
    ]
    return {str(path.relative_to(workspace.root)): seals.content_hash(path) for path in paths}


def test_a_stop_while_the_program_is_still_loading_is_no_traceback(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Signal:
        """Comes when the engine is imported, which takes seconds."""

        def find_spec(self, name: str, *_: object) -> None:
            if name == "simic.pipeline.engine":
                os.kill(os.getpid(), signal.SIGTERM)

    before = files(workspace)
    monkeypatch.delitem(sys.modules, "simic.pipeline.engine")
    monkeypatch.delattr(pipeline, "engine")
    monkeypatch.setattr(sys, "meta_path", [Signal(), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["simic", "audit"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == EXIT_INTERRUPTED
    assert capfd.readouterr().err.startswith("simic: stopped in ")
    assert files(workspace) == before


def test_a_second_signal_while_a_stopped_stage_tidies_up_spoils_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What it leaves is hidden, and the next run removes it."""
    before, again = files(workspace), []

    def impatient(*arguments: Any, **options: Any) -> None:
        again.append(arguments)
        os.kill(os.getpid(), signal.SIGINT)

    def stopped_once(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(durable.shutil, "rmtree", impatient)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(
            "simic.data.prepare.save", stopped_once
        )  # called when most of the work is done
        patch.setattr(sys, "argv", ["simic", "stage", "prepare"])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    monkeypatch.undo()
    assert stopped.value.code == EXIT_INTERRUPTED and "Traceback" not in capfd.readouterr().err
    after = files(workspace)
    assert again and {name: after[name] for name in after if "/." not in name} == before
    monkeypatch.chdir(workspace.root)
    stages.prepare(params.load(workspace.params), workspace)
    assert sorted(files(workspace)) == sorted(before)


def test_what_is_done_is_recorded_before_the_run_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, toys = toy_project(tmp_path), Toys()
    monkeypatch.setattr(stages, "STAGES", toys.stages("prepare", "train"))
    monkeypatch.setattr(engine, "observers", lambda *_: ())
    workspace.checkpoints.mkdir()
    commit = dvc_record.commit
    monkeypatch.setattr(
        dvc_record,
        "commit",
        lambda *arguments: os.kill(os.getpid(), signal.SIGTERM) or commit(*arguments),
    )
    for stage in ("prepare", "train"):
        execution = engine.Execution(stop=threading.Event())
        with pytest.raises(
            Interrupted,
            match=f"stopped after {stage}, which is done and recorded; the same command",
        ):
            engine.refresh(
                stage, params.load(workspace.params), workspace, execution, lambda line: None
            )
        assert not dvc_record.is_stale(workspace.root, stage)
    assert toys.ran == ["prepare", "train"]
