"""Killed at any change of a file between the last iteration of training and the end: published, recorded, not trained
again. Real stages, DVC and MLflow; the machine's power is what is simulated, by SIGKILL.
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

from simic import params
from simic.pipeline import continuing, dvc_record, engine, stages
from simic.pipeline.paths import Workspace
from simic.training import trainer
from simic.training.observers import Observer
from simic.training.session import open_session
from tests.helpers import ROOT, some
from tests.pipeline.hook import sitecustomize as hook
from tests.pipeline.killed_chain import points
from tests.pipeline.small_suite import tree

OUTPUTS = ("checkpoints", "models", "telemetry", "reports/seals/train.json")
DVC_YAML = {
    "stages": {
        "train": {
            "cmd": "exit 9",
            "deps": ["data/prepared"],
            "params": ["rng_seed", "train"],
            "outs": [{name: {"persist": True}} for name in OUTPUTS],
        }
    }
}
DIFFER = ("timing.jsonl", "run.json")  # between equal runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, initialised: bytes) -> Workspace:
    """A project whose training has had its last iteration; nothing of it is published. Read only."""
    found = Workspace(tmp_path_factory.mktemp("kills") / "finished")
    (found.root / ".dvc").mkdir(parents=True)
    shutil.copy(ROOT / ".dvc" / "config", found.root / ".dvc")
    (found.root / "dvc.yaml").write_text(yaml.safe_dump(DVC_YAML))
    (found.root / "mlflow.db").write_bytes(initialised)
    found.params.write_text(yaml.safe_dump(tree("audit.certify=false").model_dump(mode="json")))
    dvc_record.adopt_scm(found.root)
    loaded = params.load(found.params)
    stages.prepare(loaded, found)
    continuing.begin(loaded, found, fresh=False, allow_code_change=False)
    with open_session(loaded, found.work(stages.fingerprint(loaded, found)), found.prepared) as session:
        trainer.train(session)
    return found


class Steps(Observer):
    """How many are trained."""

    def __init__(self) -> None:
        self.count = 0

    def on_step(self, iteration: int, step: int) -> None:
        self.count += 1


def refresh(workspace: Workspace) -> int:
    """As `simic run` does; how many steps were trained."""
    steps = Steps()
    with engine.workspace_lock(workspace):
        engine.refresh("train", workspace, engine.Execution((steps,)), lambda line: None)
    return steps.count


def contents(workspace: Workspace) -> dict[str, bytes]:
    """Of a published run; of MLflow every step and value as often as it has them."""
    files = [file for name in OUTPUTS[:3] for file in (workspace.root / name).rglob("*") if file.is_file()]
    found = {str(f.relative_to(workspace.root)): f.read_bytes() for f in files if f.name not in DIFFER}
    return found | {"mlflow": json.dumps(points(workspace), sort_keys=True).encode()}


def killed_at(change: int, workspace: Workspace, where: str) -> int:
    """The exit status of a process that does it and is killed there; 0 counts changes without a kill."""
    program = "import sys; from tests.pipeline.test_kills import main; main(sys.argv[1], int(sys.argv[2]))"
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{Path(hook.__file__).parent}"}
    if where == "dvc":
        env |= {"KILL_DVC_AT": str(change), "KILL_DVC_BELOW": str(workspace.root)}
    command = [sys.executable, "-c", program, str(workspace.root), str(change if where == "simic" else 0)]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


def main(root: str, at: int) -> None:
    """What is killed."""
    hook.watch(root, at, Path(root + "-changes-of-simic"), (os.getpid(),))
    assert refresh(Workspace(Path(root))) == 0


@pytest.fixture(scope="module")
def undisturbed(finished: Workspace) -> tuple[dict[str, bytes], dict[str, int]]:
    """What is published, and how many changes of files that takes, of this process and of DVC."""
    found = Workspace(Path(shutil.copytree(finished.root, finished.root.with_name("undisturbed"))))
    assert killed_at(0, found, "dvc") == 0
    assert points(found), "MLflow has been told"
    return contents(found), {
        name: int(found.root.with_name(f"undisturbed-changes-of-{name}").read_text()) for name in ("simic", "dvc")
    }


def assert_nothing_is_lost(change: int, where: str, finished: Workspace, tmp_path: Path, expected: dict) -> None:
    workspace = Workspace(Path(shutil.copytree(finished.root, tmp_path / f"{where}-{change}")))
    assert killed_at(change, workspace, where) == -signal.SIGKILL
    for _ in range(2):
        assert refresh(workspace) == 0, "trained again"
        assert contents(workspace) == expected
        assert not dvc_record.is_stale(workspace.root, "train")
        assert list((workspace.state / "work").iterdir()) == []
    shutil.rmtree(workspace.root)


# Shares of all changes: in publication, MLflow, record and removal.
MOMENTS = [*(("simic", share) for share in (0.02, 0.3, 0.6, 0.8, 0.9, 0.97)), ("dvc", 0.5), ("dvc", 0.95)]


@pytest.mark.parametrize(("where", "share"), some(MOMENTS, ("simic", 0.6)))
def test_a_kill_loses_nothing(where, share, finished, undisturbed, tmp_path) -> None:
    expected, counts = undisturbed
    assert_nothing_is_lost(max(1, int(share * counts[where])), where, finished, tmp_path, expected)


@pytest.mark.prove
@pytest.mark.parametrize("where", ["simic", "dvc"])
def test_a_kill_at_any_change_of_a_file_loses_nothing(where, finished, undisturbed, tmp_path) -> None:
    expected, counts = undisturbed
    for change in range(1, counts[where] + 1):
        assert_nothing_is_lost(change, where, finished, tmp_path, expected)
