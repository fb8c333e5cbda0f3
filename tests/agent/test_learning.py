"""It learns values: probes after Andy Jones, "Debugging reinforcement learning systems". tests/test_examples.py has a
decision that needs memory, masks and heads.
"""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from simic.agent.gym_adapter import GymAdapter
from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO, with_advantages
from simic.agent.rollout import collect
from simic.agent.spec import Observation
from tests import standard

GAMMA = 0.9
SETTINGS = standard.PPOParams(
    learning_rate=1e-2, epochs=4, minibatches=2, target_kl=None, entropy_coef=0.01, entropy_coef_final=0.001,
    gamma=GAMMA, max_grad_norm=0.5,
)  # fmt: skip


class Last(gymnasium.Env):
    """Observes the time and pays 1 at the end of two steps."""

    observation_space, action_space = Box(-2.0, 2.0, (1,)), Discrete(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self.time += 1
        return (
            np.full(1, self.time, dtype=np.float32),
            float(self.time == 2),
            self.time == 2,
            False,
            {},
        )


class Endless(Last):
    """Observes nothing, pays 0.1 for ever and is cut off every 4 steps."""

    def step(self, action):
        self.time += 1
        return np.zeros(1, dtype=np.float32), 0.1, False, self.time == 4, {}


def learned(probe: type[gymnasium.Env], core: str, iterations: int) -> ActorCritic:
    env = GymAdapter(SyncVectorEnv([probe] * 8, autoreset_mode=AutoresetMode.SAME_STEP), rng_seed=1)
    sizes = standard.Policy(encoder_units=32, core=core, core_units=32, head_units=32)
    policy, scales, position = (
        ActorCritic(env.action_spec, env.observation_spec, sizes, 1),
        Normalizers(),
        None,
    )
    ppo = PPO(policy, SETTINGS, rng_seed=1, total_updates=iterations)
    for iteration in range(iterations):
        rollout, position = collect(env, policy, scales, iteration, 1, 16, position=position)
        rollout = with_advantages(rollout, rollout.rewards, GAMMA, SETTINGS.gae_lambda)
        assert ppo.update(rollout, iteration).first_ratio_ok
    return policy


def value(policy: ActorCritic, *path: float) -> float:
    """V at the end of a path of observations within one episode."""
    state = policy.initial_state(1)
    for number in path:
        seen = Observation(torch.tensor([[number]]), torch.zeros(1, 0, dtype=torch.int64), {})
        readings, state = policy.step(seen, state)
    return policy.state_value(readings.value).item()


def test_what_is_paid_later_is_worth_less_now() -> None:
    policy = learned(Last, "lstm", 40)
    assert value(policy, 0.0) == pytest.approx(GAMMA, abs=0.05)
    assert value(policy, 0.0, 1.0) == pytest.approx(1.0, abs=0.05)


def test_a_truncated_episode_is_worth_more_than_what_it_paid() -> None:
    """V = 0.1 / (1 − γ) = 1, and not the 0.34 of four discounted rewards."""
    assert value(learned(Endless, "none", 60), 0.0) == pytest.approx(1.0, abs=0.1)
