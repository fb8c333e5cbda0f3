"""The table beside a grown network: what its figures are made of, and on which hosts."""

from contextlib import closing

import numpy as np
import pytest
import torch
from tiny import tiny_env, tiny_train

from simic.data.batches import load_held_out
from simic.envs.play import play
from simic.evaluation import compare as comparing
from simic.evaluation.compare import compare
from simic.evaluation.policies import Static
from simic.evaluation.schedules import Grid
from simic.params import Runtime
from tests.standard import Params

ACTIONS = {"blueprint": ["norm"], "slot": [0, 1]}  # three schedules: static, norm at 1, norm at 0
# Two repeats of the three schedules, and one that is not among them.
VAL = np.array([[10.0, 30.0, 20.0, 0.0], [40.0, 20.0, 30.0, 0.0]])
TEST = np.array([[11.0, 25.0, 24.0, 90.0], [33.0, 21.0, 36.0, 70.0]])
COMMON = "norm at 2, step 0"


@pytest.fixture(scope="module")
def env(bank):
    """At the end of an episode of two hosts without a seed."""
    with closing(tiny_env(bank, hosts=2, actions=ACTIONS, episode_steps=2)) as found:
        play(found, Static(), 7, lambda *step: None, torch.zeros(2, dtype=torch.int64))
        yield found


@pytest.fixture
def rows(env, bank, monkeypatch):
    """Compare with the tables above for a grid; return rows by name, what the grid was asked for, and the report."""

    def found(price=0.0, common=COMMON, params=None):
        asked = []

        def played(params, splits, test, hosts, schedules, device, epochs, told):
            asked.append((splits, hosts, schedules))
            tables = [table[:, : len(schedules)] for table in (VAL, TEST)]
            size = np.full_like(tables[0], float(env.host.params)) if sizes is None else sizes[:, : len(schedules)]
            return {epochs[0]: Grid(*tables, size, size)}

        sizes = params
        monkeypatch.setattr(comparing, "grids", played)
        tree = Params(train=tiny_train(actions=ACTIONS, price=price, episode_steps=2), runtime=Runtime(processes=1))
        report = compare(tree, env, load_held_out(bank).test, 1, common, lambda *told: None)
        return {row.name: row for row in report.rows}, asked[0], report

    return found


def test_every_schedule_has_hosts_of_its_own_and_none_is_the_controllers(rows, env):
    _, (splits, hosts, schedules), report = rows()
    assert hosts.ids.shape == (2, 4) and hosts.iteration == env.iteration == 7
    assert sorted([*hosts.ids.flatten().tolist(), *env.env_ids.tolist()]) == list(range(10))
    assert report.schedules == ("static", "norm at 1, step 0", "norm at 0, step 0")
    assert len(schedules) == 4 and splits == (env.training_data, env.validation_data)


def test_figures_are_means_over_repeats_and_a_search_keeps_the_best_by_validation(rows):
    found = rows()[0]
    assert (found["host alone"].score, found["host alone"].standard_error) == (22.0, 11.0)  # of 11 and 33
    assert found[f"common schedule: {COMMON}"].score == 80.0
    assert found["random search, best of 1"].score == pytest.approx((20.0 + 30.0) / 2)
    # By validation: of the first repeat's pairs 25, 24, 25, of the second's 33, 33, 36.
    pairs = np.array([(25 + 24 + 25) / 3, (33 + 33 + 36) / 3])
    assert found["random search, best of 2"].score == pytest.approx(pairs.mean(), abs=1e-4)
    assert found["random search, best of 2"].standard_error == pytest.approx(abs(pairs[0] - pairs[1]) / 2, abs=1e-4)
    # What each costs, and how many hosts are behind it; there are but three schedules, the common one not among them.
    assert {name: (row.trainings, row.hosts) for name, row in found.items()} == {
        "host alone": (1, 2),
        f"common schedule: {COMMON}": (1, 2),
        "random search, best of 1": (1, 6),
        "random search, best of 2": (2, 6),
        "controller, one network": (1, 2),
        "controller, best of 2: written": (2, 2),
    }


def test_the_controllers_figures_are_those_of_its_own_hosts_on_the_test_split(rows, env, bank):
    found, held_out = rows()[0], load_held_out(bank)
    accuracy = env.committed(held_out.test)[0]
    assert found["controller, one network"].score == pytest.approx(float(accuracy.mean()), abs=1e-4)
    assert found["controller, best of 2: written"].score == pytest.approx(float(accuracy[1]), abs=1e-4)
    assert found["controller, one network"].params == env.host.params


def test_what_was_added_is_paid_for_by_the_search_too(rows, env):
    size = env.host.params * np.array([[1.0, 3.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    found = rows(price=10.0, params=size)[0]
    # Schedule 1 of the first repeat loses 20: 10 on validation, 5 on test, so 24 is kept against it.
    firsts = [(24 + 24 + (11 + 5) / 2) / 3, (33 + 33 + 36) / 3]  # of equals 10 and 10 each wins half the time
    assert found["random search, best of 2"].score == pytest.approx(np.mean(firsts), abs=1e-4)


def test_a_schedule_that_is_not_known_has_no_row_and_one_that_is_searched_is_trained_once(rows):
    found, (_, hosts, schedules), report = rows(common=None)
    assert report.common is None and not [name for name in found if name.startswith("common")]
    assert hosts.ids.shape == (2, 3) == (2, len(schedules))
    found, (_, hosts, _), _ = rows(common="norm at 0, step 0")
    assert hosts.ids.shape == (2, 3) and found["common schedule: norm at 0, step 0"].score == 30.0  # of 24 and 36
