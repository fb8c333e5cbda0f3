"""Limits of checks: the same number as in training; evidence is short."""

import numpy as np
import pytest

from simic import params as params_module
from simic.agent.ppo import EARLY_STOP, RATIO_TOLERANCE
from simic.audit import audit
from simic.audit.checks.base import worst_updates
from simic.audit.findings import Status
from simic.audit.limits import Limit
from tests.helpers import ROOT

from .defects import everywhere, update
from .synthetic import ITERATIONS, result


@pytest.mark.parametrize(("share", "status"), [(0.99, Status.PASS), (1.01, Status.FINDING)])
def test_replay_is_judged_by_the_tolerance_that_training_has(plant, share, status):
    damaged = update("first_ratio_deviation", 3, share * RATIO_TOLERANCE)(plant)
    assert result(damaged.run, "R1").status is status


@pytest.mark.parametrize(("share", "status"), [(0.99, Status.PASS), (1.01, Status.FINDING)])
def test_divergence_is_judged_by_the_limit_that_stops_an_epoch(plant, share, status):
    """Stop at 1.5 times a target of 0.02, which is above every fixed limit but 0.05."""
    tree = plant.run.params.model_dump()
    tree["train"]["ppo"]["target_kl"] = 0.02
    aimed = plant.attribute(params=params_module.Params.model_validate(tree))
    damaged = update("update_kl", slice(5, 12), share * EARLY_STOP * 0.02)(aimed)
    assert result(damaged.run, "R3").status is status


@pytest.mark.parametrize(
    ("above", "value", "broken"), [(True, 2.0, True), (True, 1.0, False), (False, 0.5, True)]
)
def test_a_limit_is_broken_on_its_worse_side_and_by_what_is_no_number(above, value, broken):
    limit = Limit("x", 1.0, above)
    assert limit.broken_by(value) is broken and limit.broken_by(float("nan"))


def test_evidence_is_short_however_much_is_wrong(plant):
    damaged = plant.column("updates", "ratio_mean", everywhere(20.0))
    assert len(result(damaged.run, "R2").evidence) == 5
    assert len(result(plant.column("steps", "reward", everywhere(9.0)).run, "P5").evidence) == 5
    assert worst_updates(plant.run, "ratio_mean", np.zeros(ITERATIONS, dtype=bool)) == []


def test_a_run_that_paid_nothing_is_judged_without_dividing_by_zero(plant):
    silent = plant
    for name in ("shaping", "attribution"):
        silent = silent.column("steps", f"components.{name}", everywhere(0.0))
    silent = silent.column("steps", "reward", everywhere(0.0)).column(
        "episodes", "return", everywhere(0.0)
    )
    for check in ("P3", "P5"):
        assert result(silent.run, check).status is Status.PASS, check


def test_the_default_run_is_long_enough_for_every_check():
    shipped = params_module.load(ROOT / "params.yaml").train
    assert all(check.minimum <= shipped.iterations for check in audit.checks())
