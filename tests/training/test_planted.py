"""PPO finds what is planted, and does not where rewards have the other sign."""

import pytest
import torch

from simic import params
from simic.data.batches import load_split
from simic.data.prepare import prepare
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import play
from simic.training import trainer
from simic.training.learned import Learned
from simic.training.session import open_session
from tests import planted
from tests.helpers import ROOT
from tests.patches import GRADUAL

CHANCE_PCT = 50.0  # where hosts without the planted seed stay
LEAST_WON_PCT = 9.0  # points above chance: the least of 30 seeds of clean code / 1.5
HOSTS, ITERATION = 8, 1 << 44  # hosts that training has not seen
SETTINGS = (
    *GRADUAL,
    *planted.OVERRIDES,
    "train.batches_per_epoch=4",
    "train.episode_steps=12",
    "train.iterations=14",
    "train.envs=32",
    "train.stop_on=never",
    "train.lifecycle.training_dwell=1",
    "train.lifecycle.blending_dwell=1",
    "train.lifecycle.min_prune_age=2",
    "train.lifecycle.embargo_steps=0",
    "train.lifecycle.max_seeds=1",
    "train.actions={style: [linear_add], alpha_target: [1.0]}",
    "train.reward.mode=score",
    *(f"train.policy.{part}_units=32" for part in ("encoder", "core", "head")),
    "train.ppo.minibatches=2",
    "train.ppo.learning_rate=0.003",
    "train.ppo.target_kl=0.03",
    "runtime={device: cpu, cores: 1, threads: 1, progress: none}",
)


def won(folder) -> float:
    """Points above chance of the last checkpoint's policy on the validation split."""
    tree = params.load(ROOT / "params.yaml", list(SETTINGS))
    prepare(tree.prepare, tree.rng_seed, folder / "prepared", folder)
    with open_session(tree, folder / "work", folder / "prepared") as session:
        counters = trainer.train(session)
        learned = Learned.of(session.checkpoints.read(counters.iteration))
    splits = (load_split(folder / "prepared", name) for name in ("train", "val"))
    env = GrowthEnv(tree.train, tree.rng_seed, *splits, torch.arange(HOSTS))
    play(env, learned.actor(greedy=True), ITERATION, lambda *step: None)
    return float(env.state.measured.committed_accuracy.mean()) - CHANCE_PCT


@pytest.mark.slow
def test_ppo_finds_what_is_planted_unless_rewards_have_the_other_sign(tmp_path, monkeypatch):
    assert won(tmp_path / "clean") >= LEAST_WON_PCT
    estimated = trainer.with_advantages
    monkeypatch.setattr(
        trainer,
        "with_advantages",
        lambda rollout, rewards, *rest: estimated(rollout, -rewards, *rest),
    )
    assert won(tmp_path / "negated") < LEAST_WON_PCT
