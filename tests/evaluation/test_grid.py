"""A grid is its rows: whatever is beside it, in whatever population, a schedule on a host reaches the same."""

from contextlib import closing

import numpy as np
import pytest
import torch
from tiny import tiny_train

from simic.data.batches import load_held_out
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import play
from simic.evaluation import scoring
from simic.evaluation.costs import spent
from simic.evaluation.grid import Splits, grid, grids
from simic.evaluation.schedules import NONE, OpenLoop, Schedule
from simic.evaluation.scoring import Hosts
from simic.growth.life.vocabulary import Stage
from simic.params import Runtime
from tests.standard import Params

ITERATION, CPU = 77, torch.device("cpu")
SCHEDULES = [Schedule((NONE,) * 3), Schedule((1, NONE, NONE)), Schedule((NONE, NONE, 4), 2)]
HOSTS = Hosts(torch.tensor([1, 0]), torch.tensor([40, 7]), ITERATION)


@pytest.fixture(scope="module")
def params():
    return Params(train=tiny_train(episode_steps=12), runtime=Runtime(processes=1, threads=1, backend="loop"))


@pytest.fixture(scope="module")
def splits(bank):
    held = load_held_out(bank)
    return Splits(held.train, held.val, held.test)


@pytest.fixture(scope="module")
def found(params, splits):
    return grid(params, splits, HOSTS, SCHEDULES, CPU)


def tables(found):
    return (
        found.val_accuracy_pct, found.test_accuracy_pct, found.params,
        found.flops_per_sample, found.training_flops, found.validation_flops,
    )  # fmt: skip


def alone(params, splits, host, schedule, name=None):
    """The six numbers of one host in an environment of its own."""
    name, task = HOSTS.ids[host, None] if name is None else name, HOSTS.tasks[host, None]
    data = splits.train, splits.val
    with closing(GrowthEnv(params.train, params.rng_seed, *data, name, backend="loop")) as env:
        flops = []
        play(env, OpenLoop([schedule]), ITERATION, lambda s, a, r, info: flops.append(info.flops), task)
        costs = spent(env, torch.stack(flops).sum(dim=0))
        kept = env.slots.stage == Stage.FOSSILIZED
        assert int(kept.sum()) == (schedule != SCHEDULES[0])
        size = env.host.params + int(env.population.seed_params(env.slots)[kept].sum())
        work = env.host.flops_per_sample + int(env.population.seed_flops(env.slots)[kept].sum())
        measured = env.state.measured.committed_accuracy, env.committed(splits.test)[0]
        return [*map(float, measured), size, work, *map(int, costs)]


def test_every_row_is_its_schedule_played_alone_on_that_host_bit_for_bit(params, splits, found):
    for host in range(2):
        for index, schedule in enumerate(SCHEDULES):
            row = [float(table[host, index]) for table in tables(found)]
            assert row == alone(params, splits, host, schedule), (host, schedule)
    assert len({*found.test_accuracy_pct.flatten().tolist()}) > 2


@pytest.mark.slow
def test_a_schedule_can_have_hosts_of_its_own(params, splits, found):
    own = torch.tensor([[40, 2, 3], [5, 7, 11]])
    parted = grid(params, splits, Hosts(HOSTS.tasks, own, ITERATION), SCHEDULES, CPU)
    for host in range(2):
        for index, schedule in enumerate(SCHEDULES):
            row = [float(table[host, index]) for table in tables(parted)]
            assert row == alone(params, splits, host, schedule, own[host, index, None]), (host, schedule)
    assert parted.val_accuracy_pct[0, 0] == found.val_accuracy_pct[0, 0]  # the same host
    assert (parted.val_accuracy_pct != found.val_accuracy_pct).any()


def test_a_last_population_that_is_filled_up_changes_and_loses_nothing(params, splits, found, monkeypatch):
    monkeypatch.setattr(scoring, "ROWS_AT_ONCE", 4)
    told = []
    parted = grid(params, splits, HOSTS, SCHEDULES, CPU, lambda done, rows: told.append((done, rows)))
    assert all(np.array_equal(a, b) for a, b in zip(tables(parted), tables(found), strict=True))
    assert told == [(4, 6), (6, 6)]


def test_without_a_test_split_nothing_is_scored_and_all_else_is_the_same(params, splits, found):
    searched = grid(params, Splits(splits.train, splits.val), HOSTS, SCHEDULES, CPU)
    assert searched.test_accuracy_pct is None
    pairs = zip(tables(searched), tables(found), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs if a is not None)


def test_one_run_is_a_grid_of_every_shorter_episode(params, splits, found):
    """Bit for bit, costs included; at 3 epochs the seeds are in different stages, at 5 the first is kept."""
    together = grids(params, splits, HOSTS, SCHEDULES, CPU, (12, 3, 5))
    assert list(together) == [3, 5, 12]
    for epochs, one in together.items():
        shorter = params.model_copy(update={"train": tiny_train(episode_steps=epochs)})
        same = found if epochs == 12 else grid(shorter, splits, HOSTS, SCHEDULES, CPU)
        assert all(np.array_equal(a, b) for a, b in zip(tables(one), tables(same), strict=True))
    assert together[3].params.max() < together[5].params.max() < together[12].params.max()
    assert (together[3].training_flops < together[12].training_flops).all()
