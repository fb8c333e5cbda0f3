"""It learns: five probes that each need one more part of the algorithm (after Andy Jones, "Debugging reinforcement
learning systems"), a gate that refuses, and a decision that needs memory, masks and the hierarchy of heads.
"""

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from simic import rng
from simic.agent.gym_adapter import GymAdapter
from simic.agent.normalization import Normalizers, RewardNormalizer
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO, collect, with_advantages
from simic.agent.spec import ActionSpec, Head, Observation, ObservationSpec
from tests import standard
from tests.helpers import some

from .worlds import WorldInfo

SIZES = standard.Policy(encoder_units=32, core="lstm", core_units=32, head_units=32)
GAMMA = 0.9
SETTINGS = standard.PPOParams(
    learning_rate=1e-2, epochs=4, minibatches=2, target_kl=None, entropy_coef=0.01, entropy_coef_final=0.001,
    gamma=GAMMA, max_grad_norm=0.5,
)  # fmt: skip


class Probe(gymnasium.Env):
    """``observe(random, time)`` → observation; ``pay(observation, action, time)`` → reward; ends after ``length``."""

    observation_space = Box(-2.0, 2.0, (1,))

    def __init__(self, observe: Callable, pay: Callable, actions: int = 1, length: int = 1) -> None:
        self.observe, self.pay, self.length = observe, pay, length
        self.action_space = Discrete(actions)

    def _look(self) -> np.ndarray:
        self.seen = float(self.observe(self.np_random, self.time))
        return np.array([self.seen], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        reward = float(self.pay(self.seen, int(action), self.time))
        self.time += 1
        return self._look(), reward, self.time == self.length, False, {}


def sign(random, time) -> float:
    return random.choice([-1.0, 1.0])


def learn(env, policy: ActorCritic, iterations: int, steps: int, settings=SETTINGS, normalizers=None) -> PPO:
    normalizers, position = normalizers or Normalizers(), None
    ppo = PPO(policy, settings, rng_seed=1, total_updates=iterations)
    for iteration in range(iterations):
        rollout, position = collect(env, policy, normalizers, iteration, 1, steps, position=position)
        if env.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            position = None
        rewards = normalizers.update(rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid)
        metrics = ppo.update(with_advantages(rollout, rewards, settings.gamma, settings.gae_lambda), iteration)
        assert metrics.first_ratio_ok, metrics.first_ratio_deviation
    return ppo


def solve(probe: Callable[[], Probe], iterations: int) -> ActorCritic:
    env = GymAdapter(SyncVectorEnv([probe] * 8, autoreset_mode=AutoresetMode.SAME_STEP), rng_seed=1)
    policy = ActorCritic(env.action_spec, env.observation_spec, SIZES, rng_seed=1)
    learn(env, policy, iterations, steps=16)
    env.close()
    return policy


def look(policy: ActorCritic, *path: float) -> tuple[float, list[float]]:
    """V and action probabilities at the end of a path of observations within one episode."""
    state = policy.initial_state(1)
    for value in path:
        seen = Observation(torch.tensor([[value]]), torch.zeros(1, 0, dtype=torch.int64), {})
        z, of_value, state = policy.remember(seen, state)
    return policy.state_value(of_value).item(), policy.choose(z, {})[0].log_probs.exp()[0].tolist()


def test_probe_3_discounting() -> None:
    policy = solve(
        lambda: Probe(lambda random, time: float(time), lambda seen, action, time: float(time == 1), length=2), 40
    )
    assert look(policy, 0.0)[0] == pytest.approx(GAMMA, abs=0.05)
    assert look(policy, 0.0, 1.0)[0] == pytest.approx(1.0, abs=0.05)


def test_probe_5_policy_and_value_of_an_observation() -> None:
    policy = solve(lambda: Probe(sign, lambda seen, action, time: seen * (2 * action - 1), actions=2), 25)
    for seen, best in ((1.0, 1), (-1.0, 0)):
        value, probabilities = look(policy, seen)
        assert probabilities[best] > 0.95
        assert value == pytest.approx(1.0, abs=0.25)


def test_a_truncated_episode_is_worth_more_than_what_it_paid() -> None:
    """0.1 for ever, cut off every 4 steps: V = 0.1 / (1 − γ) = 1, and not the 0.34 of four discounted rewards."""

    class Endless(Probe):
        def step(self, action):
            seen, reward, ended, _, info = super().step(action)
            return seen, reward, False, ended, info

    env = GymAdapter(
        SyncVectorEnv(
            [lambda: Endless(lambda random, time: 0.0, lambda seen, action, time: 0.1, length=4)] * 8,
            autoreset_mode=AutoresetMode.SAME_STEP,
        ),
        rng_seed=1,
    )
    policy = ActorCritic(env.action_spec, env.observation_spec, SIZES.model_copy(update={"core": "none"}), rng_seed=1)
    learn(env, policy, 60, steps=16)
    assert look(policy, 0.0)[0] == pytest.approx(1.0, abs=0.1)


class OneDecision:
    """The cue is seen once: which slot, which blueprint, and whether to plant or to remove. Three steps later, and only
    then, something else than waiting is possible. Planting right pays 1; removing uses no blueprint.

    Masks: op 0 waits and has no slot at all; a slot that holds nothing to remove cannot be removed from.
    """

    SLOTS, BLUEPRINTS, DELAY = 2, 3, 3
    WAIT, PLANT, REMOVE = 0, 1, 2
    SPEC = ActionSpec(
        (Head("op", 3), Head("slot", SLOTS, "op"), Head("blueprint", BLUEPRINTS, "slot")),
        ((True, False, False), (True, True, True), (True, True, False)),
    )
    SEEN = ObservationSpec(3, categories=SLOTS, cardinality=BLUEPRINTS)

    def __init__(self, envs: int) -> None:
        self.env_ids, self.num_envs = torch.arange(envs), envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}

    def reset(self, *, seed=None, options=None):
        stream = rng.key(77, rng.Purpose.BASELINE, (options or {}).get("iteration", 0), self.env_ids)
        draws = rng.uniform(stream, (3,))
        self.op = 1 + (draws[:, 0] < 0.5).long()
        self.slot = (draws[:, 1] * self.SLOTS).long()
        self.blueprint = (draws[:, 2] * self.BLUEPRINTS).long()
        self.time = 0
        return self._observation(), None

    def _observation(self) -> Observation:
        row, first = torch.arange(self.num_envs), self.time == 0
        features = torch.zeros(self.num_envs, 3)
        features[:, 0] = float(first)
        features[:, 1] = float(self.time == self.DELAY)
        features[:, 2] = float(first) * (2.0 * self.op - 3.0)
        categories = torch.full((self.num_envs, self.SLOTS), -1)
        if first:
            categories[row, self.slot] = self.blueprint
        op = torch.ones(self.num_envs, 3, dtype=torch.bool)
        op[:, 1:] = self.time == self.DELAY
        slot = torch.ones(self.num_envs, 3, self.SLOTS, dtype=torch.bool)
        slot[:, self.WAIT] = False
        blueprint = torch.ones(self.num_envs, self.SLOTS, self.BLUEPRINTS, dtype=torch.bool)
        return Observation(features, categories, {"op": op, "slot": slot, "blueprint": blueprint})

    def right(self, actions: torch.Tensor) -> torch.Tensor:
        placed = (actions[:, 0] == self.op) & (actions[:, 1] == self.slot)
        return placed & ((self.op == self.REMOVE) | (actions[:, 2] == self.blueprint))

    def step(self, actions: torch.Tensor, /):
        deciding = self.time == self.DELAY
        reward = self.right(actions).float() if deciding else torch.zeros(self.num_envs)
        self.time += 1
        ended = torch.full((self.num_envs,), deciding)
        return self._observation(), reward, ended, torch.zeros_like(ended), WorldInfo(None)


def decide(policy: ActorCritic, env: OneDecision, blind: bool = False) -> float:
    """Share of right greedy decisions on cues never learned from."""
    observation, _ = env.reset(options={"iteration": 10_000})
    state = policy.initial_state(env.num_envs)
    for t in range(env.DELAY + 1):
        step = policy.act(observation, state, greedy=True)
        state = step.state.zeroed(torch.full((env.num_envs,), blind))
        right = env.right(step.actions) if t == env.DELAY else None
        observation, *_ = env.step(step.actions)
    assert right is not None
    return right.float().mean().item()


@pytest.mark.parametrize("ratio", some(["joint", "per_head"], "joint"))
def test_one_decision_that_needs_memory_masks_and_the_hierarchy(ratio: str) -> None:
    env = OneDecision(256)
    policy = ActorCritic(env.SPEC, env.SEEN, SIZES, rng_seed=1)
    settings = SETTINGS.model_copy(
        update={"ratio": ratio, "learning_rate": 5e-3, "entropy_coef": 0.1, "target_kl": 0.02}
    )
    learn(env, policy, 60, env.DELAY + 1, settings, Normalizers(reward=RewardNormalizer(256, settings.gamma)))
    assert decide(policy, OneDecision(500)) >= 0.9
    assert decide(policy, OneDecision(500), blind=True) < 0.5  # the test needs the memory
