"""Faults of the learner, planted into a training on CartPole: the audit refutes the run, as it does for growth."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.catalogue import maths
from tests.faults.fault import copied
from tests.helpers import ROOT

# Runs in a process of its own, with the patched package.
PROGRAM = """
import json, sys
from pathlib import Path
from simic import params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
workspace = Workspace(Path(sys.argv[1]))
tree = params.load(Path(sys.argv[2]), json.loads(sys.argv[3]))
for name in ("prepare", "headroom", "train", "evaluate", "audit"):
    stages.STAGES[name](tree, workspace)
"""
SMALL = [
    "prepare.task=gym", "prepare.gym.id=CartPole-v1", "train.envs=8", "train.episode_steps=96", "train.iterations=4",
    "train.horizon=null", "train.policy={core: lstm, encoder_units: 16, core_units: 16, head_units: 16, critic: own}",
    "train.ppo.normalize_rewards=true", "train.ppo.gamma=0.95", "train.ppo.gae_lambda=0.8", "train.stop_on=never",
    "train.ppo.max_grad_norm=0.1", "evaluate.policies=[learned]", "evaluate.eval_seeds=2", "evaluate.epochs=null",
    "runtime.progress=none", "runtime.threads=1",
]  # fmt: skip
# With one head the ratio of a head is that of the action; with autoreset the value after a terminal step is 0 anyhow.
NO_FAULT_HERE = ("ratio-per-head", "bootstrap-at-terminal")


def refuted(folder: Path, package: Path) -> list[str]:
    """Return the checks of the proof that refute a small run of this package."""
    root = folder / "run"
    root.mkdir()
    command = [sys.executable, "-P", "-c", PROGRAM, str(root), str(ROOT / "params.yaml"), json.dumps(SMALL)]
    done = subprocess.run(command, env={"PYTHONPATH": str(package)}, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads((root / "reports" / "findings.json").read_text())["results"]
    return [r["check"] for r in results if r["status"] == "finding" and r["layer"] in ("recompute", "certify")]


# A clean run, and a record that was altered, are in tests/audit/test_gym_audit.py.
@pytest.mark.slow
def test_a_clean_run_is_certified(tmp_path: Path) -> None:
    assert refuted(tmp_path, ROOT) == []


NAMES = [name for name in maths.FAULTS if name not in NO_FAULT_HERE]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_of_the_learner_is_found_on_cartpole(name: str, tmp_path: Path) -> None:
    _, _, *patches = maths.FAULTS[name]
    assert refuted(tmp_path, copied(tmp_path, patches)) != []
