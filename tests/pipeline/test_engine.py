"""Stale? -> run -> record, with real DVC and stages of one line each, through the interface of the real ones."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from simic import params
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import dvc_record, engine, stages
from simic.pipeline.paths import Workspace
from tests.conftest import Simic
from tests.helpers import Toys, dvc_in_process, toy_project


class Stopped(Exception):
    """Training was asked to stop."""


class StoppableToys(Toys):
    """Training may be stopped, and may find its params edited."""

    edit: str | None = None

    def make(
        self,
        name: str,
        params: Params,
        workspace: Workspace,
        *observers: Any,
        stop: threading.Event | None = None,
        fresh: bool = False,
    ) -> None:
        super().make(name, params, workspace, fresh=fresh)
        if stop is not None and stop.is_set():
            raise Stopped
        if name == "train":
            (workspace.checkpoints / "x").write_text(f"{params.rng_seed} {params.train.envs}")
            if self.edit:
                content = workspace.params.read_text()
                workspace.params.write_text(content.replace(*self.edit.split(" -> ")))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    project = toy_project(tmp_path)
    tree = yaml.safe_load(project.params.read_text())
    tree["train"]["envs"], tree["evaluate"]["eval_seeds"], tree["runtime"]["progress"] = (
        24,
        20,
        "auto",
    )
    project.params.write_text(yaml.safe_dump(tree))
    return project


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> StoppableToys:
    """In place of the stages; MLflow has nothing to be told of them. What asks DVC is in test_dvc_record.py."""
    dvc_in_process(monkeypatch)
    replacement = StoppableToys()
    monkeypatch.setattr(stages, "STAGES", replacement.stages("prepare", "train"))
    monkeypatch.setattr(engine, "observers", lambda *_: ())
    return replacement


def chain(workspace: Workspace, **options: bool | threading.Event) -> list[str]:
    """The names of the stages that ran."""
    tree = params.load(workspace.params)
    return engine.run_chain(
        tree, workspace, "train", engine.Execution(**options), lambda line: None
    )


def repro(workspace: Workspace) -> int:
    """Let DVC's command bring training up to date: a stage that ran would exit 9."""
    command = [sys.executable, "-m", "dvc", "repro", "train"]
    return subprocess.run(command, cwd=workspace.root, capture_output=True, check=False).returncode


def test_what_ran_is_recorded_and_then_neither_entry_does_anything_until_params_change(
    workspace: Workspace, toys: StoppableToys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped training is not recorded; alone it needs no headroom; fresh, it prepares nothing. Seals say what is up to
    date: DVC is not asked.
    """
    monkeypatch.setattr(stages, "STAGES", toys.stages("prepare", "headroom", "train"))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        chain(workspace, stop=stop)
    assert chain(workspace) == ["train"]
    assert repro(workspace) == 0
    queries, ask = list[str](), dvc_record._dvc
    monkeypatch.setattr(
        dvc_record,
        "_dvc",
        lambda root, *words, **options: queries.append(words[0]) or ask(root, *words, **options),
    )
    assert chain(workspace) == [] and queries == []
    assert chain(workspace, fresh=True) == ["train"]
    assert toys.ran == ["prepare", "train", "train", "train fresh"]
    # Changed params run what depends on them alone.
    workspace.params.write_text(workspace.params.read_text().replace("envs: 24", "envs: 12"))
    assert chain(workspace) == ["train"]
    assert (workspace.checkpoints / "x").read_text() == "1 12"
    workspace.params.write_text(
        workspace.params.read_text().replace("progress: auto", "progress: none")
    )
    assert chain(workspace) == []  # how to run is no part of what was computed
    lock, toys.edit = (workspace.root / "dvc.lock").read_text(), "envs: 12 -> envs: 24"
    # Edited meanwhile, they are recorded as they ran; where DVC records, it would take 24 for what was trained with 12.
    assert chain(workspace, fresh=True) == ["train"]
    assert (workspace.root / "dvc.lock").read_text() != lock
    assert recorded_envs(workspace) == 12 and params.load(workspace.params).train.envs == 24
    toys.edit = "envs: 24 -> envs: 12"
    with pytest.raises(SimicError, match=r"train changed while train ran.*dvc commit -f train"):
        engine.run_alone("train", params.load(workspace.params), workspace, print)


def recorded_envs(workspace: Workspace) -> int:
    lock = yaml.safe_load((workspace.root / "dvc.lock").read_text())
    return lock["stages"]["train"]["params"]["params.yaml"]["train"]["envs"]


def leave_a_default_out(workspace: Workspace) -> None:
    """Params stay what they are, and DVC sees another params.yaml."""
    tree = yaml.safe_load(workspace.params.read_text())
    tree["train"]["governor"].clear()
    workspace.params.write_text(yaml.safe_dump(tree))


def test_what_dvc_watches_and_no_result_depends_on_is_recorded_anew_and_repeats_nothing(
    workspace: Workspace, toys: StoppableToys
) -> None:
    """Files of extensions/ that params do not name, and defaults that params.yaml writes out or leaves out."""
    extensions = workspace.root / "extensions"
    (extensions / "tables" / "__pycache__").mkdir(parents=True)
    (extensions / "README.md").write_text("Yours.")
    (workspace.root / ".dvcignore").write_text("# not a change\n__pycache__\n*.pyc\n")
    declared = yaml.safe_load((workspace.root / "dvc.yaml").read_text())
    for stage in declared["stages"].values():
        stage["deps"] = [*stage.get("deps", ()), "extensions"]
    (workspace.root / "dvc.yaml").write_text(yaml.safe_dump(declared))
    assert chain(workspace) == ["prepare", "train"]

    def add_a_table() -> None:
        (extensions / "tables" / "mine.csv").write_text("1,2")

    def add_bytecode() -> None:
        (extensions / "tables" / "__pycache__" / "mine.pyc").write_text("x")

    for change, is_seen in (
        (add_a_table, True),
        (add_bytecode, False),
        (lambda: leave_a_default_out(workspace), True),
    ):
        change()
        assert dvc_record.is_stale(workspace.root, "train") is is_seen, change
        lock = (workspace.root / "dvc.lock").read_bytes()
        tree = params.read_tree(workspace.params)
        assert dvc_record.sees_no_change(workspace.root, "train", tree) is not is_seen, change
        assert chain(workspace) == []
        assert (lock != (workspace.root / "dvc.lock").read_bytes()) is is_seen, change
        assert repro(workspace) == 0
    assert toys.ran == ["prepare", "train"]


def test_a_stage_that_dvc_repeats_for_no_reason_does_nothing_and_one_asked_for_by_force_begins_anew(
    workspace: Workspace, toys: StoppableToys
) -> None:
    assert chain(workspace) == ["prepare", "train"]
    tree = params.load(workspace.params)
    engine.run_alone("train", tree, workspace, print)  # dvc repro -f
    assert toys.ran == ["prepare", "train", "train fresh"]
    dvc_record.commit(workspace.root, "train", params.read_tree(workspace.params))
    leave_a_default_out(workspace)
    engine.run_alone("train", tree, workspace, print)  # dvc repro
    assert toys.ran == ["prepare", "train", "train fresh"]


@pytest.mark.parametrize(
    "command", [("run",), ("stage", "prepare"), ("train",), ("promote",)], ids=" ".join
)
def test_a_workspace_that_somebody_holds_refuses_every_command_and_names_the_holder(
    command: tuple[str, ...], workspace: Workspace, toys: StoppableToys, simic: Simic
) -> None:
    """`simic stage` is what `dvc repro` runs."""
    with engine.workspace_lock(workspace):
        refusal = simic.refuses(*command, root=workspace.root)
    assert (
        f"in use by process {os.getpid()} on " in refusal
        and "which runs stages; wait for it" in refusal
    )
    assert toys.ran == []


def test_a_run_of_an_experiment_bears_its_name(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That `dvc exp show` has: it is found in MLflow by it."""
    monkeypatch.setattr(engine, "data_hash", lambda _: "")  # there are no real data
    monkeypatch.delenv("DVC_EXP_NAME", raising=False)
    assert "simic.experiment" not in engine.provenance(workspace)
    monkeypatch.setenv("DVC_EXP_NAME", "brave-mole")
    assert engine.provenance(workspace)["simic.experiment"] == "brave-mole"


# --- overrides ---


def overridden(workspace: Workspace, *overrides: str) -> list[str]:
    """What is said."""
    lines = list[str]()
    tree = params.load(workspace.params, list(overrides))
    engine.run_chain(tree, workspace, "train", engine.Execution(), lines.append, overrides)
    return lines


class Death(BaseException):
    """Ends the process: nothing tidies up."""


@pytest.mark.parametrize("end", [SimicError("refused"), ZeroDivisionError(), Death()], ids=repr)
@pytest.mark.parametrize("stage", ["prepare", "train"])
def test_params_yaml_is_not_touched_before_all_is_done(
    end: BaseException,
    stage: str,
    workspace: Workspace,
    toys: StoppableToys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that no end of a run can leave it changed. DVC's record has what ran."""
    before, make = workspace.params.read_bytes(), stages.STAGES[stage]

    def ending(*arguments: Any, **options: Any) -> None:
        assert workspace.params.read_bytes() == before
        raise end

    monkeypatch.setitem(stages.STAGES, stage, ending)
    with pytest.raises(type(end)):
        overridden(workspace, "train.envs=240")
    assert workspace.params.read_bytes() == before

    monkeypatch.setitem(stages.STAGES, stage, make)
    lines = overridden(workspace, "train.envs=240")
    assert lines[0] == "for this run: train.envs: 24 -> 240"
    assert lines[-1].startswith("params.yaml now holds these values; to undo that, restore")
    assert params.load(workspace.params).train.envs == recorded_envs(workspace) == 240
    assert overridden(workspace, "train.envs=240") == ["prepare: up to date", "train: up to date"]


def test_what_a_hand_changes_meanwhile_is_not_undone(
    workspace: Workspace, toys: StoppableToys
) -> None:
    toys.edit = "envs: 24 -> envs: 36"
    assert "params.yaml was edited meanwhile" in overridden(workspace, "train.envs=240")[-1]
    assert params.load(workspace.params).train.envs == 36
    assert recorded_envs(workspace) == 240


def test_a_run_that_is_refused_says_why(workspace: Workspace) -> None:
    """With the real stages: there are no such data, and one could be had there."""
    with pytest.raises(SimicError, match=r"nowhere.txt: no such file; put it there \(any UTF-8"):
        overridden(workspace, "prepare.task=text", "prepare.source=nowhere.txt")
