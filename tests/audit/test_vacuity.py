"""Symptoms have their numbers beside their limits, the headline says what was not seen."""

import pytest

from simic import params as params_module
from simic.audit import audit, limits
from simic.audit.findings import Status, Verdict
from tests.helpers import ROOT

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
