"""What one environment answers, keeps and says of legal actions, where people put it."""

from collections.abc import Callable
from itertools import cycle

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit
from gymnasium.wrappers.utils import RunningMeanStd

from simic.agent import Agent
from simic.agent.agent import settings, sizes
from simic.agent.checked_env import CheckedEnv
from simic.agent.gym_adapter import vectorized
from simic.errors import SimicError

PLAIN = sizes(core="none", encoder_units=8, head_units=8)


class Bare(gymnasium.Env):
    """Shows its offset and a step's number; ``infos`` go with what reset and step return."""

    action_space = Discrete(3)

    def __init__(self, offset: float = 0.0, dtype: type = np.float64, **infos: dict) -> None:
        self.observation_space = Box(0, 2**62 if dtype is np.int64 else 255, (1,), dtype)
        self.offset = offset
        self.infos = infos

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([self.offset]), self.infos.get("reset", {})

    def step(self, action):
        self.time += 1
        seen = np.array([self.offset + self.time])
        return seen, 1.0, self.time == 4, False, self.infos.get("step", {})

    def legality(self) -> np.ndarray:
        return np.array([1, self.time, 0]) > 0


class Method(Bare):
    def valid_action_mask(self):
        return self.legality()


class Property(Bare):
    @property
    def action_masks(self):
        return self.legality()


class Attribute(Bare):
    def reset(self, **options):
        answer = super().reset(**options)
        self.action_mask = self.legality().astype(np.int8)
        return answer


class NeedsState(Bare):
    """As Taxi: its method is about any state, the info about the present one."""

    def action_mask(self, state):
        raise AssertionError


INFO = {"action_mask": np.array([1, 0, 0], np.int8)}


@pytest.mark.parametrize(
    ("env", "source"),
    [
        (Method(), "valid_action_mask()"),
        (TimeLimit(Property(), 3), "action_masks"),
        (Attribute(), "action_mask"),
        (NeedsState(reset=INFO, step=INFO), "info['action_mask']"),
    ],
)
def test_a_mask_is_found_where_people_put_it(env: gymnasium.Env, source: str) -> None:
    checked = CheckedEnv(env)
    checked.reset()
    assert checked.mask_source == source and np.array(checked.legal()).tolist() == [1, 0, 0]


def test_a_mask_of_the_info_is_followed_and_a_loaded_agent_asks_for_it(tmp_path) -> None:
    def make() -> Bare:
        return Bare(reset=INFO, step=INFO)

    agent = Agent(make, envs=4, rollout_steps=8, policy=PLAIN)
    agent.train(32)
    agent.save(tmp_path / "saved")
    loaded = Agent.load(tmp_path / "saved", make)
    assert loaded.predict([0.0], mask=[False, False, True])[0] == 2
    with pytest.raises(SimicError, match=r"mask None: must be info\['action_mask'\], as training"):
        loaded.predict([0.0])
    with pytest.raises(SimicError, match="forbids every choice"):
        loaded.predict([0.0], mask=[False] * 3)
    for infos in ({"step": INFO}, {"reset": INFO}):
        checked = CheckedEnv(Bare(**infos))
        checked.reset()
        with pytest.raises(SimicError, match=r"must come with both|is missing: must be there"):
            checked.step(np.array([0])) and checked.legal()


class Spoken(Bare):
    def legal_moves(self):
        return [0]


def test_what_may_be_a_mask_is_spoken_of(caplog) -> None:
    CheckedEnv(Spoken(reset={"available_actions": [0]})).reset()
    assert "if legal_moves, info['available_actions'] says which are, offer it" in caplog.text
    caplog.clear()
    CheckedEnv(gymnasium.make("CartPole-v1")).reset()
    # Numbers cannot be masked, whatever is called like a mask.
    numbers = Spoken(reset={"possible_moves": [0]})
    numbers.action_space = Box(-1.0, 1.0, (2,))
    CheckedEnv(numbers).reset()
    assert not caplog.records
    numbers.action_space = Dict(aim=numbers.action_space, op=Discrete(2))
    CheckedEnv(numbers).reset()
    assert "every action is taken for legal" in caplog.text


class Scaled(gymnasium.Wrapper):
    """One's own wrapper with statistics."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.scale = RunningMeanStd()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NormalizeObservation(Bare()), "keeps obs_rms.* ppo.normalize_observations does"),
        (
            lambda: TimeLimit(NormalizeReward(Bare()), 9),
            "keeps return_rms.* ppo.normalize_rewards does the same",
        ),
        (lambda: Scaled(Bare()), "^Scaled keeps scale, which a new copy for evaluation"),
    ],
)
def test_statistics_that_evaluation_would_not_have_are_refused(make: Callable, words: str) -> None:
    with pytest.raises(SimicError, match=words):
        vectorized(make, 2, 1)


def test_statistics_that_are_frozen_are_those_of_every_copy() -> None:
    env = NormalizeObservation(Bare())
    env.update_running_mean = False
    CheckedEnv(env).reset()


@pytest.mark.parametrize(
    ("offset", "dtype", "words"),
    [
        (1.7e9 + 0.5, np.float32, "1700000000.5, which its space's float32 cannot hold: .*float64"),
        (0.5, np.uint8, "0.5, which its space's uint8 cannot hold"),
        (300.0, np.uint8, "300.0, which its space's uint8 cannot hold"),
        (0.1, np.float32, None),
        (2.0**40, np.float32, None),
    ],
)
def test_numbers_that_the_declared_type_would_change_are_refused(offset, dtype, words) -> None:
    env = CheckedEnv(Bare(offset, dtype))
    if words is None:
        env.reset()
    else:
        with pytest.raises(SimicError, match=words):
            env.reset()


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_a_large_offset_is_centred_before_digits_are_lost(dtype: type) -> None:
    """Else all observations of a clock would be one."""
    agent = Agent(lambda: Bare(1.7e9, dtype), envs=4, rollout_steps=8, policy=PLAIN)
    agent.train(64)
    agent.env.reset()
    seen = [
        agent.normalizers.see(agent.env.step(agent.policy.relevance.new_zeros(4, 1).long())[0])
        for _ in range(3)
    ]
    steps = np.diff([float(observation.features[0, 0]) for observation in seen])
    assert steps.min() > 0.4 and steps == pytest.approx(steps[0], abs=1e-6)
    assert seen[0].features.dtype == agent.policy.like.dtype


ONE = Bare()
TWO = cycle([Bare(), Bare()])


@pytest.mark.parametrize("make", [lambda: ONE, lambda: TimeLimit(ONE, 9), lambda: next(TWO)])
def test_one_environment_for_several_rows_is_refused(make: Callable) -> None:
    with pytest.raises(SimicError, match="the same one again: must make a new one at each call"):
        Agent(make, envs=4, policy=PLAIN)


def test_the_environment_of_training_is_not_that_of_an_evaluation() -> None:
    closed = []

    class Closing(Bare):
        def close(self):
            closed.append(self)

    one = Closing()
    agent = Agent(lambda: one, envs=1, rollout_steps=8, policy=PLAIN, ppo=settings(minibatches=1))
    agent.train(8)
    with pytest.raises(SimicError, match="must make a new one at each call"):
        agent.evaluate(1)
    assert not closed
