"""Limits of checks: where training has the same limit it is the same number; nothing divides by nothing."""

import numpy as np
import pytest

from simic.agent.ppo import EARLY_STOP, RATIO_TOLERANCE
from simic.audit.checks.base import where
from simic.audit.findings import Status

from .defects import everywhere, params, update
from .synthetic import ITERATIONS, result


@pytest.mark.parametrize(("share", "status"), [(0.99, Status.PASS), (1.01, Status.FINDING)])
def test_replay_is_judged_by_the_tolerance_that_training_has(plant, share, status):
    damaged = update("first_ratio_deviation", 3, share * RATIO_TOLERANCE)(plant)
    assert result(damaged.run, "R1").status is status


@pytest.mark.parametrize(("share", "status"), [(0.99, Status.PASS), (1.01, Status.FINDING)])
def test_divergence_is_judged_by_the_limit_that_stops_an_epoch(plant, share, status):
    """Stop at 1.5 times a target of 0.02, which is above every fixed limit but 0.05."""
    aimed = params(lambda tree: tree["train"]["ppo"].update(target_kl=0.02))(plant)
    damaged = update("exact_kl", slice(5, 12), share * EARLY_STOP * 0.02)(aimed)
    assert result(damaged.run, "R3").status is status


def test_evidence_is_short_however_much_is_wrong(plant):
    damaged = plant.column("updates", "ratio_mean", everywhere(20.0))
    found = result(damaged.run, "R2")
    assert len(found.evidence) == 5
    assert len(result(plant.column("steps", "reward", everywhere(9.0)).run, "P5").evidence) == 5
    nothing = np.zeros(ITERATIONS, dtype=bool)
    assert where(plant.run, "ratio_mean", nothing) == []


def test_a_run_that_paid_nothing_is_judged_without_dividing_by_zero(plant):
    silent = plant
    for name in ("shaping", "attribution"):
        silent = silent.column("steps", f"components.{name}", everywhere(0.0))
    silent = silent.column("steps", "reward", everywhere(0.0)).column("episodes", "return", everywhere(0.0))
    for check in ("P3", "P5"):
        found = result(silent.run, check)
        assert found.status is Status.PASS, (check, found.measured)
