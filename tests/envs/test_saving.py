"""Everything that an episode mutates is saved between two of its steps and comes back, leaf by leaf."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from simic import rng
from simic.envs.actions import random_legal
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.growth.batch.shards import Layout, Shards
from tests.standard import Reward

HOSTS, STEPS, SAVED_AT, BROKEN = 6, 10, 7, 1
IN_GROUPS = partial(Shards, layout=Layout(HOSTS, 4, 1), setup=lambda: None)  # of four hosts and of two, in this process


def act(env: GrowthEnv, observation, step: int):
    """One step of random legal actions; the observation after it, and all that it says."""
    stream = rng.key(1, rng.Purpose.BASELINE, env.iteration, env.env_ids, step)
    noise = rng.uniform(stream, (len(env.action_spec.heads),))
    observation, reward, *_, info = env.step(random_legal(env.action_spec, observation, noise))
    numbers = {name: value for name, value in vars(info).items() if name != "components"}
    return observation, info.components | numbers | {"reward": reward, "features": observation.features}


def played(env: GrowthEnv, steps: int = SAVED_AT):
    """That far into an episode; a host whose learning rate is absurd is rolled back in it."""
    observation, _ = env.reset(options={"iteration": 3})
    for step in range(steps):
        if step == 4 and not isinstance(env.population, Shards):
            env.population.learning_rate[BROKEN] = 1e30
        observation, _ = act(env, observation, step)
    return observation


def leaves(value, path: str = "env") -> Iterator[tuple[str, object]]:
    """Every tensor and number that an object of this package holds, however deep, by where it is."""
    if isinstance(value, Tensor | bool | int | float):
        if not (isinstance(value, Tensor) and value.is_meta):  # of a template, without values
            yield path, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{path}[{key}]")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from leaves(each, f"{path}[{number}]")
    elif type(value).__module__.startswith("simic.") and hasattr(value, "__dict__"):
        for name, each in vars(value).items():
            yield from leaves(each, f"{path}.{name}")


def same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    return one == other


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


def differing(env: GrowthEnv, other: GrowthEnv) -> set[str]:
    own, theirs = dict(leaves(env)), dict(leaves(other))
    return {path for path in own.keys() | theirs.keys() if not same(own.get(path), theirs.get(path))}


@pytest.fixture(scope="module", params=["in one", "in groups"])
def make(request, make_env):
    changes = {"compose": IN_GROUPS} if request.param == "in groups" else {}
    return partial(make_env, HOSTS, steps=STEPS, reward=Reward(mode="loss"), **changes)


@pytest.fixture(scope="module")
def before(make):
    """An environment in the middle of its episode, and what it saved there; read only."""
    env = make()
    return env, played(env), env.state_dict()


def fresh(make) -> GrowthEnv:
    env = make()
    env.reset(options={"iteration": 3})
    return env


def test_whatever_differs_from_a_reset_is_saved_and_loaded(make, before):
    """Found by looking through the whole object, not from a list."""
    env, observation, state = before
    other = fresh(make)
    moved = differing(env, other)
    tensors = {path for path, value in leaves(env) if path in moved and isinstance(value, Tensor)}
    assert len(tensors) > 60 and "env._step" in moved
    for part in ("_state.tracker", "_state.vitals", "_state.slots", "_masks", "_snapshot", "_stores"):
        # The snapshot of hosts in groups is with the groups.
        assert any(part in path for path in tensors) or part == "_snapshot", part
    if not isinstance(env.population, Shards):
        assert not env.state.alive[BROKEN] and env.state.alive.sum() == HOSTS - 1
    seen = other.load_state_dict(state)
    assert sorted(path for path in differing(env, other) if not local(path, other)) == []
    assert bits(seen.features) == bits(observation.features)
    assert all(torch.equal(seen.masks[name], mask) for name, mask in observation.masks.items())


def local(path: str, env: GrowthEnv) -> bool:
    """How groups name data and snapshots; and rows of a kind of seed that no host of a group had, 0 after a load."""
    value = dict(leaves(env)).get(path)
    unused = "_stores" in path and isinstance(value, Tensor) and not value.any()
    return isinstance(env.population, Shards) and (
        unused or any(name in path for name in ("_names", "_known", "].data[", "snapshots", "_snapshot.name"))
    )


def test_it_goes_on_as_if_nothing_had_been(make, before):
    env, _, state = make(), *before[1:]
    expected, other = played(env), fresh(make)
    seen = other.load_state_dict(state)
    for step in range(SAVED_AT, STEPS):
        expected, theirs = act(env, expected, step)
        seen, ours = act(other, seen, step)
        assert all(same(ours[name], theirs[name]) for name in theirs), step
    assert env.slots.stage.any()
    assert {name: bits(tensor) for name, tensor in env.state_dict().items()} == {
        name: bits(tensor) for name, tensor in other.state_dict().items()
    }


def test_hosts_in_groups_are_saved_as_hosts_of_one_group_are(make_env):
    one, groups = (make_env(HOSTS, steps=STEPS, **changes) for changes in ({}, {"compose": IN_GROUPS}))
    for env in (one, groups):
        observation, _ = env.reset(options={"iteration": 3})
        for step in range(SAVED_AT):
            observation, _ = act(env, observation, step)
    ours, theirs = one.state_dict(), groups.state_dict()
    assert ours.keys() == theirs.keys()
    assert {name: (x.shape, x.dtype) for name, x in ours.items()} == {n: (x.shape, x.dtype) for n, x in theirs.items()}
    there = make_env(HOSTS, steps=STEPS, compose=IN_GROUPS)
    there.reset(options={"iteration": 3})
    there.load_state_dict(ours)
    assert {name: bits(tensor) for name, tensor in there.state_dict().items()} == {
        name: bits(tensor) for name, tensor in ours.items()
    }


@pytest.mark.parametrize("change", ["missing", "unknown", "shape", "kind"])
def test_the_state_of_another_episode_is_refused(make, before, change):
    _, _, state = before
    name = "episode/ledgers.tracked_loss"
    changed = dict(state)
    if change == "missing":
        del changed[name]
    elif change == "unknown":
        changed["episode/ledgers.more"] = state[name]
    else:
        changed[name] = state[name][:1] if change == "shape" else state[name].float()
    with pytest.raises(SimicError, match=r"state of an episode: ledgers\.(tracked_loss|more) is"):
        fresh(make).load_state_dict(changed)


def test_hosts_of_other_sizes_are_refused(make, before):
    _, _, state = before
    for name in ("hosts/host/param", "snapshot/host/momentum"):
        with pytest.raises(SimicError, match=r"population state host/(param|momentum): shape"):
            fresh(make).load_state_dict({**state, name: state[name][:, :-1]})
