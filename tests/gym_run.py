"""All five stages of a small run on CartPole, made once for several tests; read only."""

from pathlib import Path

import pytest

from simic import params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.helpers import ROOT, made_once

SMALL = [
    "prepare.task=gym", "prepare.gym.id=CartPole-v1", "train.envs=8", "train.episode_steps=96", "train.iterations=4",
    "train.horizon=null", "train.policy={core: lstm, encoder_units: 16, core_units: 16, head_units: 16, critic: own}",
    "train.ppo.normalize_rewards=true", "train.ppo.gamma=0.95", "train.ppo.gae_lambda=0.8", "train.stop_on=never",
    "train.ppo.max_grad_norm=0.1", "evaluate.policies=[learned]", "evaluate.eval_seeds=2", "evaluate.epochs=null",
    "runtime.progress=none", "runtime.threads=1",
]  # fmt: skip
TREE = params.load(ROOT / "params.yaml", SMALL)


def gym_run(factory: pytest.TempPathFactory) -> Workspace:
    def make(folder: Path) -> None:
        for stage in stages.STAGES.values():
            stage(TREE, Workspace(folder))

    return Workspace(made_once(factory, "cartpole", make))
