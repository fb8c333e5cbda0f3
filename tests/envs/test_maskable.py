"""An agent that is not ours trains on the single-environment view, unchanged: sb3-contrib's MaskablePPO."""

import gymnasium
import pytest
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

from tests.standard import Lifecycle, PPOParams, Train

TRAIN = Train(
    envs=1,
    episode_steps=16,
    batches_per_epoch=1,
    batch_size=16,
    ppo=PPOParams(minibatches=1),
    lifecycle=Lifecycle(training_dwell=1, min_prune_age=3, embargo_steps=1),
)


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch, tmp_path):
    """stable-baselines3 draws from torch's own generator and makes a folder for its log: no other test notices."""
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))
    with torch.random.fork_rng():
        yield


class Watch(BaseCallback):
    """What was played, and whether it was legal."""

    def __init__(self) -> None:
        super().__init__()
        self.illegal: list[bool] = []
        self.ops: set[int] = set()
        self.episodes = 0

    def _on_step(self) -> bool:
        self.illegal += [info["illegal"] for info in self.locals["infos"]]
        self.ops |= {info["effective_op"] for info in self.locals["infos"]}
        self.episodes += int(self.locals["dones"].sum())
        return True


def test_maskable_ppo_learns_on_it_and_plays_nothing_illegal(digits):
    env = gymnasium.make(
        "simic.envs.single_env:simic/Growth-v0", train=TRAIN, dataset_train=digits[0], dataset_val=digits[1]
    )
    agent = MaskablePPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, seed=3, device="cpu")
    before = {name: parameter.clone() for name, parameter in agent.policy.state_dict().items()}
    watch = Watch()
    agent.learn(128, callback=watch)
    env.close()
    assert len(watch.illegal) >= 128 and not any(watch.illegal)
    assert watch.episodes == len(watch.illegal) // TRAIN.episode_steps
    assert len(watch.ops) >= 3
    after = agent.policy.state_dict()
    assert all(parameter.isfinite().all() for parameter in after.values())
    assert all(not torch.equal(before[name], parameter) for name, parameter in after.items())
