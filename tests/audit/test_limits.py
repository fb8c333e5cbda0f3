"""Limits of checks: the same number as in training, beside what was measured; the headline says what was not seen."""

import numpy as np
import pytest

from simic import params as params_module
from simic.agent.ppo import EARLY_STOP, RATIO_TOLERANCE
from simic.audit import audit, limits
from simic.audit.checks.base import where
from simic.audit.findings import Status, Verdict
from tests.helpers import ROOT

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
    damaged = update("update_kl", slice(5, 12), share * EARLY_STOP * 0.02)(aimed)
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


# F and X are about the evaluation and the origin of a run; the others measure how it learned.
SYMPTOMS = tuple(check for check in audit.checks(of_gym=False) if check.layer == "symptom" and check.id[0] not in "FX")


@pytest.mark.parametrize("check", SYMPTOMS, ids=lambda check: check.id)
def test_a_symptom_has_its_numbers_beside_their_limits(check, clean):
    found = check.run(clean)
    assert found.statistics
    for each in found.statistics:
        assert each.value is not None, each.name
        assert limits.Limit(each.name, each.limit, above=each.above).broken_by(each.value) is False
    named = {limit.name: limit for limit in limits.every() if limit.ours}
    ours = [each for each in found.statistics if each.ours]
    assert all(each.limit == named[each.name] for each in ours)
    assert bool(ours) <= ("ours" in check.source), "the source says that a limit is ours"


def test_the_headline_counts_what_could_be_critical_and_was_not_evaluated(plant):
    verdict = audit.examine(plant.without("updates.first_ratio_deviation"), "x")
    assert "R1" in verdict.unseen and "M1" not in verdict.unseen
    assert f"not evaluated, though a finding would be critical: {', '.join(verdict.unseen)}" in verdict.summary[2]
    whole = Verdict(run="x", results=tuple(r for r in verdict.results if r.status is Status.PASS))
    assert "critical" not in audit.summarize(plant.run, whole)[2]


def test_the_default_run_is_long_enough_for_every_check():
    shipped = params_module.load(ROOT / "params.yaml").train
    assert all(check.minimum <= shipped.iterations for check in audit.checks())
