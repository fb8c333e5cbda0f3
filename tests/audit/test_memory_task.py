"""A task that needs memory, solved with masks: its gradients end near zero, and the audit refutes nothing."""

import json
from pathlib import Path

from simic import params
from simic.audit.findings import Verdict
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.helpers import ROOT

SMALL = [
    "prepare.task=gym", "prepare.gym.id=tests.gym_toys:Maze-v0", "train.envs=16", "train.episode_steps=32",
    "train.iterations=12", "train.horizon=16", "train.stop_on=never",
    "train.policy={core: lstm, encoder_units: 16, core_units: 16, head_units: 16, critic: own}",
    "train.ppo={learning_rate: 0.02, epochs: 4, minibatches: 2}", "evaluate.policies=[learned]",
    "evaluate.eval_seeds=20", "evaluate.epochs=null", "runtime.progress=none", "runtime.threads=1",
]  # fmt: skip


def test_a_solved_maze_with_masks_is_trained_replayed_and_not_refuted(tmp_path: Path) -> None:
    tree = params.load(ROOT / "params.yaml", SMALL)
    workspace = Workspace(tmp_path)
    for stage in stages.STAGES.values():
        stage(tree, workspace)
    # Without memory half of all turns are right.
    assert json.loads(workspace.metrics.read_text())["return/learned"] == 1.0
    verdict = Verdict.from_json((workspace.reports / "findings.json").read_bytes())
    assert verdict.findings == ()
    assert verdict.summary.replay.startswith("Training: equal (")
    assert "Evaluation: equal (" in verdict.summary.replay
