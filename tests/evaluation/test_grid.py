"""A grid is its rows: whatever is beside it, in whatever population, a schedule on a host reaches the same."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import tiny_train

from simic.data.batches import load_held_out
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import play
from simic.evaluation.schedules import NONE, OpenLoop, Schedule, grids
from simic.evaluation.scoring import Hosts
from simic.growth.life.vocabulary import Stage
from simic.params import Runtime
from tests.standard import Params

ITERATION, CPU = 77, torch.device("cpu")
SCHEDULES = [Schedule((NONE,) * 3), Schedule((1, NONE, NONE)), Schedule((NONE, NONE, 4), 2)]
HOSTS = Hosts(torch.tensor([1, 0]), torch.tensor([40, 7]), ITERATION)


@pytest.fixture(scope="module")
def params():
    return Params(
        train=tiny_train(episode_steps=12, batches_per_epoch=1), runtime=Runtime(processes=1, threads=1, backend="loop")
    )


@pytest.fixture(scope="module")
def splits(bank):
    held = load_held_out(bank)
    return held.train, held.val, held.test


def grid(params, splits, hosts=HOSTS, told=lambda *_: None):
    *data, test = splits
    [found] = grids(params, data, test, hosts, SCHEDULES, CPU, [params.train.longest_episode], told).values()
    return found


@pytest.fixture(scope="module")
def found(params, splits):
    return grid(params, splits)


def tables(found):
    return list(vars(found).values())


def equal(one, other):
    return all(map(np.array_equal, tables(one), tables(other)))


def alone(params, splits, host, schedule, name=None):
    """The four numbers of one host in an environment of its own."""
    name, task = HOSTS.ids[host, None] if name is None else name, HOSTS.tasks[host, None]
    *data, test = splits
    with closing(GrowthEnv(params.train, params.rng_seed, *data, name, backend="loop")) as env:
        play(env, OpenLoop([schedule]), ITERATION, lambda *step: None, task)
        kept = env.slots.stage == Stage.FOSSILIZED
        assert int(kept.sum()) == (schedule != SCHEDULES[0])
        size = env.host.params + int(env.population.seed_params(env.slots)[kept].sum())
        work = env.host.flops_per_sample + int(env.population.seed_flops(env.slots)[kept].sum())
        return [float(env.state.measured.committed_accuracy), float(env.committed(test)[0]), size, work]


def test_every_row_is_its_schedule_played_alone_on_that_host_bit_for_bit(params, splits, found):
    for host in range(2):
        for index, schedule in enumerate(SCHEDULES):
            row = [float(table[host, index]) for table in tables(found)]
            assert row == alone(params, splits, host, schedule), (host, schedule)
    assert len({*found.test_accuracy_pct.flatten().tolist()}) > 2


def test_without_a_test_split_nothing_is_scored_and_all_else_is_the_same(params, splits, found):
    searched = grid(params, (*splits[:2], None))
    assert np.isnan(searched.test_accuracy_pct).all()
    assert equal(replace(searched, test_accuracy_pct=found.test_accuracy_pct), found)
