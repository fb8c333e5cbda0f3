"""The warm start: the explorer decides, what won among twins is cloned, and a stop costs nothing."""

import math

import numpy as np
import pytest
from small_runs import assert_same_run, interrupted_after, run, small_params, steps_of, updates_of

from simic.errors import SimicError
from simic.growth.life.vocabulary import Op
from simic.training.checkpoint import read


def params(**changes):
    return small_params(**{"envs": 4, "twins": 2, "warm_start": 3, "iterations": 4, "episode_steps": 12} | changes)


@pytest.fixture(scope="module")
def warm(prepared, tmp_path_factory):
    """A run of three iterations of imitation and one of PPO; read only."""
    work = tmp_path_factory.mktemp("warm")
    run(work, prepared, params=params())
    return work


def test_demonstrations_are_kept_as_long_as_they_are_cloned_and_no_longer(warm):
    def shown(iteration):
        return {n.split("/")[1][:3] for n in read(warm / "checkpoints" / f"{iteration:06d}").tensors if "demonst" in n}

    assert shown(2) == {"000", "001"}
    assert shown(3) == shown(4) == set()


def test_the_explorer_germinates_at_once_on_most_hosts_and_the_policy_learns_of_all_its_episodes(warm):
    first = [step for step in steps_of(warm) if step.step == 1 and step.iteration < 3]
    assert np.mean([op == Op.GERMINATE for step in first for op in step.op]) > 0.5
    updates = updates_of(warm)
    assert [update.metrics["samples"] for update in updates] == [48, 96, 144, 48]
    assert [update.env_steps for update in updates] == [48, 96, 144, 192]
    assert all(update.metrics["first_ratio_ok"] for update in updates)
    assert [math.isnan(update.metrics["approx_kl"]) for update in updates] == [True] * 3 + [False]
    assert [math.isnan(update.metrics["ratio_max"]) for update in updates] == [True] * 3 + [False]
    assert [update.metrics["entropy_coef"] > 0 for update in updates] == [False] * 3 + [True]


@pytest.mark.parametrize("steps", [5, 17, 30, 40])
def test_a_stop_inside_the_imitation_phase_changes_no_byte(warm, prepared, tmp_path, steps):
    interrupted_after(steps, tmp_path, prepared, params())
    run(tmp_path, prepared, params=params())
    assert_same_run(tmp_path, warm)


def test_a_warm_start_without_twins_is_refused():
    with pytest.raises((SimicError, ValueError), match="warm_start needs twins"):
        params(twins=1)
