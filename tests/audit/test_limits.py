"""Limits of checks: where training has the same limit it is the same number; nothing divides by nothing."""

import numpy as np
import pytest

from simic.agent.ppo import EARLY_STOP, RATIO_TOLERANCE
from simic.audit.checks.shared import ema_before, where
from simic.audit.findings import Status
from simic.envs import rewards

from .defects import everywhere, params, update
from .synthetic import ITERATIONS, result


@pytest.mark.parametrize(("share", "status"), [(0.99, Status.PASS), (1.01, Status.FINDING)])
def test_replay_is_judged_by_the_tolerance_that_training_has(plant, share, status):
    damaged = update("first_ratio_deviation", 3, share * RATIO_TOLERANCE)(plant)
    assert result(damaged.run, "R1").status is status


@pytest.mark.parametrize(("share", "status"), [(0.99, Status.PASS), (1.01, Status.FINDING)])
def test_divergence_is_judged_by_the_limit_that_stops_an_epoch(plant, share, status):
    """With a target of 0.02 the epoch stops at 1.5 times that, which is above every fixed limit but 0.05."""
    aimed = params(lambda tree: tree["train"]["ppo"].update(target_kl=0.02))(plant)
    damaged = update("exact_kl", slice(5, 12), share * EARLY_STOP * 0.02)(aimed)
    assert result(damaged.run, "R3").status is status


def test_evidence_is_short_however_much_is_wrong(plant):
    damaged = plant.column("updates", "ratio_mean", everywhere(20.0))
    found = result(damaged.run, "R2")
    assert len(found.evidence) == 5
    assert len(result(plant.column("steps", "reward", everywhere(9.0)).run, "P5").evidence) == 5
    nothing = np.zeros(ITERATIONS, dtype=bool)
    assert where(plant.run, "ratio_mean", nothing) == ()


def test_a_run_that_paid_nothing_is_judged_without_dividing_by_zero(plant):
    silent = plant
    for name in ("shaping", "terminal"):
        silent = silent.column("steps", f"components.{name}", everywhere(0.0))
    silent = silent.column("steps", "reward", everywhere(0.0)).column("episodes", "return", everywhere(0.0))
    for check in ("P1", "P2", "P3", "P5"):
        found = result(silent.run, check)
        assert found.status is Status.PASS, (check, found.measured)


def test_the_average_before_a_value_does_not_know_it():
    values = np.array([4.0, 8.0, 0.0, 100.0])
    # first value alone; 0.9 · 4 + 0.1 · 8; 0.9 · 4.4 + 0.1 · 0
    assert np.isnan(ema_before(values)[0])
    assert ema_before(values)[1:].tolist() == pytest.approx([4.0, 4.4, 3.96])


@pytest.mark.parametrize("objective", rewards.OBJECTIVES)
def test_what_a_mode_is_about_may_make_up_all_of_its_reward(plant, objective):
    """Whatever the reward mode calls it; help on the way may not."""
    columns = dict(plant.run.steps.columns)
    large = 100.0 * columns.pop("components.terminal") + 100.0
    for name, status in ((objective, Status.PASS), ("my_bonus", Status.FINDING)):
        steps = type(plant.run.steps)({**columns, f"components.{name}": large})
        assert result(plant.attribute(steps=steps).run, "P2").status is status
