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


def played(env: GrowthEnv):
    """That far into an episode."""
    observation, _ = env.reset(options={"iteration": 3})
    for _ in range(SAVED_AT):
        observation, _ = random_step(env, observation)
    return observation


def bits(tensors: dict[str, Tensor]) -> dict[str, tuple]:
    """Everything that tells tensors apart."""
    return {name: (x.dtype, x.shape, x.detach().contiguous().numpy().tobytes()) for name, x in tensors.items()}


@pytest.fixture(scope="module", params=["in one", "in groups"])
def make(request, make_env):
    """Of hosts in one group, one breaks and is rolled back in the fifth step."""
    compose = IN_GROUPS if request.param == "in groups" else poisoned(BROKEN, 5)
    return partial(make_env, HOSTS, steps=STEPS, reward=Reward(mode="loss"), compose=compose)


@pytest.fixture(scope="module")
def before(make):
    """What an environment saved in the middle of its episode; read only."""
    env = make()
    played(env)
    return env.state_dict()


def fresh(make) -> GrowthEnv:
    env = make()
    env.reset(options={"iteration": 3})
    return env


def test_it_goes_on_as_if_nothing_had_been(make, before):
    env = make()
    expected, other = played(env), fresh(make)
    assert env.state.alive.sum() == HOSTS - (not isinstance(env.population, Shards))
    seen = other.load_state_dict(before)
    assert bits(seen.masks | {"features": seen.features}) == bits(expected.masks | {"features": expected.features})
    for step in range(SAVED_AT, STEPS):
        expected, theirs = random_step(env, expected)
        seen, ours = random_step(other, seen)
        assert bits(ours) == bits(theirs), step
    assert env.slots.stage.any()
    assert bits(env.state_dict()) == bits(other.state_dict())


@pytest.mark.parametrize("change", ["missing", "unknown", "shape", "kind"])
def test_the_state_of_another_episode_is_refused(make, before, change):
    name = "episode/ledgers.tracked_loss"
    changed = dict(before)
    if change == "missing":
        del changed[name]
    elif change == "unknown":
        changed["episode/ledgers.more"] = before[name]
    else:
        changed[name] = before[name][:1] if change == "shape" else before[name].float()
    with pytest.raises(SimicError, match=r"state of an episode: ledgers\.(tracked_loss|more) is"):
        fresh(make).load_state_dict(changed)


def test_hosts_of_other_sizes_are_refused(make, before):
    for name in ("hosts/host/param", "snapshot/host/momentum"):
        with pytest.raises(SimicError, match=r"population state host/(param|momentum): shape"):
            fresh(make).load_state_dict({**before, name: before[name][:, :-1]})
