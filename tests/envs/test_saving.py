"""Everything that an episode mutates is saved between two of its steps and comes back."""

from functools import partial

import pytest
from torch import Tensor

from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.growth.batch.shards import Layout, Shards
from tests.standard import Reward

from .test_faults import poisoned
from .transitions import random_step

HOSTS, STEPS, SAVED_AT, BROKEN = 6, 10, 7, 1
IN_GROUPS = partial(Shards, layout=Layout(HOSTS, 4, 1), setup=lambda: None)  # of four hosts and of two, in this process


def bits(tensors: dict[str, Tensor]) -> dict[str, tuple]:
    """Everything that tells tensors apart."""
    return {name: (x.dtype, x.shape, x.detach().contiguous().numpy().tobytes()) for name, x in tensors.items()}


@pytest.fixture(scope="module", params=["in one", "in groups"])
def make(request, make_env):
    """Of hosts in one group, one breaks and is rolled back in the fifth step."""
    compose = IN_GROUPS if request.param == "in groups" else poisoned(BROKEN, 5)
    return partial(make_env, HOSTS, steps=STEPS, reward=Reward(mode="loss"), compose=compose)


@pytest.fixture(scope="module")
def saved(make):
    """An environment in the middle of its episode, what it shows, and what it saved there."""
    env = make()
    observation, _ = env.reset(options={"iteration": 3})
    for _ in range(SAVED_AT):
        observation, _ = random_step(env, observation)
    return env, observation, env.state_dict()


@pytest.fixture(scope="module")
def other(make) -> GrowthEnv:
    """At the beginning of that episode."""
    env = make()
    env.reset(options={"iteration": 3})
    return env


def test_the_state_of_another_episode_is_refused(saved, other):
    name, (*_, state) = "episode/ledgers.tracked_loss", saved
    missing, more = {key: state[key] for key in state if key != name}, {"episode/ledgers.more": state[name]}
    for changed in (missing, state | more, state | {name: state[name][:1]}, state | {name: state[name].float()}):
        with pytest.raises(SimicError, match=r"state of an episode: ledgers\.(tracked_loss|more) is"):
            other.load_state_dict(changed)
    for name in ("hosts/host/param", "snapshot/host/momentum"):
        with pytest.raises(SimicError, match=r"population state host/(param|momentum): shape"):
            other.load_state_dict(state | {name: state[name][:, :-1]})


def test_it_goes_on_as_if_nothing_had_been(saved, other):
    """Nor had a state that was refused."""
    env, expected, state = saved
    assert env.state.alive.sum() == HOSTS - (not isinstance(env.population, Shards))
    seen = other.load_state_dict(state)
    assert bits(seen.masks | {"features": seen.features}) == bits(expected.masks | {"features": expected.features})
    for step in range(SAVED_AT, STEPS):
        expected, theirs = random_step(env, expected)
        seen, ours = random_step(other, seen)
        assert bits(ours) == bits(theirs), step
    assert env.slots.stage.any()
    assert bits(env.state_dict()) == bits(other.state_dict())
