"""A run that is killed by SIGKILL comes to the same as one never killed, and nothing is trained again: with real
stages, DVC and MLflow. Kills inside training are in tests/training/test_partial.py; here they come between its last
iteration and the end, and in the evaluation.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from simic import params, seals
from simic.pipeline import dvc_record, engine, kept_runs, mlflow_store, stages, verify_resume
from simic.pipeline.paths import Workspace
from simic.training import trainer
from simic.training.observers import Observer
from simic.training.session import open_session
from tests.helpers import ROOT, copy_checkout, simic_command
from tests.pipeline.hook import sitecustomize as hook
from tests.pipeline.small_suite import tree

TIMED = ("telemetry", "reports/seals/train.json")  # outputs whose hash in dvc.lock depends on wall times


def copy(source: Path, target: Path) -> Workspace:
    return Workspace(Path(shutil.copytree(source, target)))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, suite_run: Workspace, initialised: bytes) -> Workspace:
    """A checkout with prepare and headroom done and recorded; read only, as are those below."""
    found = Workspace(tmp_path_factory.mktemp("kills") / "begun")
    found.root.mkdir()
    copy_checkout(found.root)
    simic_command(found.root)
    found.params.write_text(yaml.safe_dump(tree("audit.certify=false").model_dump(mode="json")))
    (found.root / "mlflow.db").write_bytes(initialised)
    shutil.copytree(suite_run.prepared, found.prepared)
    for stage in ("prepare", "headroom"):
        seal = seals.path_of(found.root, stage)
        seal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(seals.path_of(suite_run.root, stage), seal)
    shutil.copy(suite_run.headroom, found.headroom)
    dvc_record.adopt_scm(found.root)
    for stage in ("prepare", "headroom"):
        dvc_record.commit(found.root, stage)
    return found


@pytest.fixture(scope="module")
def finished(begun: Workspace) -> Workspace:
    """Its training has had its last iteration; nothing of it is published."""
    found = copy(begun.root, begun.root.with_name("finished"))
    loaded = params.load(found.params)
    kept_runs.begin(loaded, found, fresh=False, allow_code_change=False)
    with open_session(loaded, found.work(stages.fingerprint(loaded, found)), found.prepared) as session:
        trainer.train(session)
    return found


class Steps(Observer):
    """Counts how many are trained."""

    count = 0

    def on_step(self, iteration: int, step: int) -> None:
        self.count += 1


def refresh(stage: str, workspace: Workspace, *watching: Observer) -> None:
    """As `simic STAGE` does."""
    with engine.workspace_lock(workspace):
        engine.refresh(stage, workspace, engine.Execution(watching), lambda line: None)


def main(stage: str, root: str, at: int) -> None:
    """What is killed."""
    hook.watch(root, at, Path(root + "-changes-of-simic"), (os.getpid(),))
    steps = Steps()
    refresh(stage, Workspace(Path(root)), steps)
    assert steps.count == 0, "trained again"


def killed_at(change: int, stage: str, workspace: Workspace, where: str) -> int:
    """The exit status of a process that does a stage and is killed there; 0 counts changes without a kill."""
    program = "import sys; from tests.pipeline.test_kills import main; main(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{Path(hook.__file__).parent}"}
    if where == "dvc":
        env |= {"KILL_DVC_AT": str(change), "KILL_DVC_BELOW": str(workspace.root)}
    command = [sys.executable, "-c", program, stage, str(workspace.root), str(change if where == "simic" else 0)]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


def recorded(workspace: Workspace) -> dict[str, bytes]:
    """Return what must not depend on wall times of train and evaluate, and dvc.lock."""
    found = dict(verify_resume.contents(workspace))
    lock = yaml.safe_load((workspace.root / "dvc.lock").read_text())["stages"]
    lock.pop("audit", None)
    for out in lock["train"]["outs"]:
        if out["path"] in TIMED:
            del out["md5"], out["size"]
    found["dvc.lock"] = json.dumps(lock, sort_keys=True).encode()
    if workspace.evaluation.exists():
        found |= {path.name: path.read_bytes() for path in (workspace.evaluation, workspace.metrics)}
    return found


def points(workspace: Workspace) -> dict[str, bytes]:
    """Every step and value of the one run, as often as MLflow has it."""
    client, experiment_id = mlflow_store.connect(workspace)
    [run] = client.search_runs([experiment_id])
    assert run.info.status == "FINISHED"
    assert mlflow_store.MARKER in run.data.metrics
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: str(sorted((each.step, each.value) for each in found)).encode() for name, found in histories.items()}


class Undisturbed:
    """A stage that nobody kills: what it leaves, and its changes of files."""

    def __init__(self, stage: str, start: Workspace) -> None:
        self.stage, self.start = stage, start
        # MLflow refuses a project that was copied after it was told, so it is asked of training alone.
        self.left = (lambda found: recorded(found) | points(found)) if stage == "train" else recorded
        found = copy(start.root, start.root.with_name(f"{stage}-undisturbed"))
        assert killed_at(0, stage, found, "dvc") == 0
        self.expected = self.left(found)
        files = {name: Path(f"{found.root}-changes-of-{name}") for name in ("simic", "dvc")}
        self.changes = {name: int(file.read_text()) for name, file in files.items()}

    def assert_nothing_is_lost(self, change: int, where: str, folder: Path) -> None:
        workspace, steps = copy(self.start.root, folder / f"{where}-{change}"), Steps()
        assert killed_at(change, self.stage, workspace, where) == -signal.SIGKILL
        for _ in range(2):
            refresh(self.stage, workspace, steps)
            assert steps.count == 0, "trained again"
            assert self.left(workspace) == self.expected
            assert not dvc_record.is_stale(workspace.root, self.stage)
            assert list((workspace.state / "work").glob("*")) == []
        shutil.rmtree(workspace.root)


@pytest.fixture(scope="module")
def published(finished: Workspace) -> Undisturbed:
    return Undisturbed("train", finished)


@pytest.fixture(scope="module")
def evaluated(finished: Workspace) -> Undisturbed:
    start = copy(finished.root, finished.root.with_name("trained"))
    refresh("train", start)
    return Undisturbed("evaluate", start)


@pytest.mark.prove
@pytest.mark.parametrize("where", ["simic", "dvc"])
@pytest.mark.parametrize("stage", ["published", "evaluated"])
def test_a_kill_at_any_change_of_a_file_loses_nothing(
    stage: str, where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    undisturbed = request.getfixturevalue(stage)
    assert undisturbed.changes[where] > 5
    for change in range(1, undisturbed.changes[where] + 1):
        undisturbed.assert_nothing_is_lost(change, where, tmp_path)
