"""Symptoms have their numbers beside their limits, the headline says what was not seen, the default run reaches all."""

import pytest

from simic import params as params_module
from simic.audit import audit, limits
from simic.audit.findings import Status, Verdict
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.helpers import ROOT
from tests.pipeline.small_suite import tree

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


SHAPE = ("iterations", "validate_every")
SMALL = [
    "train.envs=12", "train.episode_steps=20", "train.ppo.minibatches=2", "train.price=0.0",
    "train.lifecycle.blending_dwell=1", "train.lifecycle.min_prune_age=4", "train.policy.core_units=8",
    "headroom.policies=[static, random_legal, patient]", "headroom.schedules=4",
    "evaluate.policies=[learned]", "audit.certify=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def as_by_default(tmp_path_factory):
    """Return every result on a real run with the shape of the default one, smaller in everything else."""
    shipped = params_module.load(ROOT / "params.yaml").train
    same = [f"train.{name}={getattr(shipped, name)}" for name in SHAPE]
    small = tree(*same, *SMALL)
    workspace = Workspace(tmp_path_factory.mktemp("default"))
    for name in stages.STAGES:
        stages.STAGES[name](small, workspace)
    verdict = Verdict.from_json((workspace.reports / "findings.json").read_bytes())
    return {found.check: found for found in verdict.results}


@pytest.mark.slow
def test_the_default_run_reaches_every_check(as_by_default):
    """K1 to K5 are evaluated where the reference ran, X1 where trainings were killed."""
    missed = {
        i: f.measured
        for i, f in as_by_default.items()
        if f.status is Status.NOT_EVALUATED and f.layer not in ("certify", "resume")
    }
    assert not missed
