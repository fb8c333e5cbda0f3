"""Hosts in groups that threads share are the same hosts: on any number of threads, and each group by itself."""

from functools import cache

import pytest
import torch

from simic import threads
from simic.envs.growth_env import GrowthEnv
from tests.envs.conftest import AT_ONCE
from tests.envs.transitions import random_step
from tests.standard import Host, Lifecycle, PPOParams, Train

from ..worlds import DATA, make_data, make_table

HOSTS = 8
GROUP = 3
TRAIN = Train(
    host=Host(preset="baseline"), envs=HOSTS, episode_steps=6, batches_per_epoch=2, batch_size=16,
    ppo=PPOParams(minibatches=1), lifecycle=Lifecycle(training_dwell=1, blending_dwell=1),
)  # fmt: skip
CHANGES = {
    "maps": {},
    "hot": {"host_optimizer": TRAIN.host_optimizer.model_copy(update={"learning_rate": 1e30})},
    "tables": {
        "host": Host(family="tables", preset="baseline", widths=(8, 8)),
        "lifecycle": AT_ONCE,
    },
}


def make(data, train: Train, **changes) -> GrowthEnv:
    return GrowthEnv(train, 1, *data, **changes)


def episode(env: GrowthEnv) -> list[dict[str, torch.Tensor]]:
    """Everything that random legal actions come to."""
    observation, _ = env.reset(options={"iteration": 0})
    steps = []
    for _ in range(env.steps):
        observation, columns = random_step(env, observation)
        steps.append(columns)
    return steps


def same(first: list[dict], second: list[dict]) -> bool:
    pairs = [(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a]
    return all(torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0)) for a, b in pairs)


@cache
def alone(case: str):
    """Params and data of a case, its hosts on one thread and what they come to; these are left as they are then."""
    train = TRAIN.model_copy(update=CHANGES[case])
    data = (DATA["cnn"], make_data(seed=1))
    if case == "tables":
        data = make_table(tasks=4, seed=1), make_table(tasks=4, samples=40, seed=2)
    env = make(data, train, group=GROUP)
    return train, data, env, episode(env)


@pytest.mark.parametrize("case", list(CHANGES))
def test_the_same_groups_give_the_same_run_on_any_number_of_threads(case: str) -> None:
    """Of tables, seeds are fitted to the task of their host; hot hosts break, and are put back."""
    train, data, single, first = alone(case)
    threads.set_count(3)
    three = make(data, train, group=GROUP)
    assert same(first, episode(three))
    assert any(step["replaced"].any() for step in first) or case != "tables"
    assert not first[-1]["valid"].all() or case != "hot"
    assert all(map(torch.equal, three.committed(data[1]), single.committed(data[1])))
    parameters = [
        [env.population.named_parameters(env.slots, row) for row in range(HOSTS)]
        for env in (single, three)
    ]
    assert same(*parameters)
    assert case == "hot" or any("seed" in name for row in parameters[0] for name in row)


@pytest.mark.parametrize("case", ["hot", "tables"])
def test_a_group_is_a_population_of_its_own(case: str) -> None:
    """Each host gets its own samples, actions, snapshots, also where some break."""
    train, data, _, together = alone(case)
    apart = [episode(make(data, train, env_ids=ids)) for ids in torch.arange(HOSTS).split(GROUP)]
    joined = [
        {name: torch.cat([part[name] for part in step]) for name in step[0]}
        for step in zip(*apart, strict=True)
    ]
    assert same(together, joined)
