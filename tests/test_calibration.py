"""Limits of the audit follow from clean runs, or say that they do not."""

import json
from pathlib import Path

import pytest

from benchmarks import calibration
from simic.audit import limits
from simic.audit.findings import Result, Statistic, Status, Verdict
from simic.audit.limits import Limit
from simic.pipeline.paths import Workspace

ROOT = Path(__file__).parents[1]
RATIO, LEAST = limits.LARGEST_RATIO, limits.LEAST_ENTROPY


def verdict(check="R2", status=Status.PASS, layer="symptom", **values):
    """With one result that has these numbers."""
    found = tuple(Statistic(name=name, value=value, limit=1.0, above=True, ours=True) for name, value in values.items())
    text = dict.fromkeys(("title", "question", "measured", "threshold", "source", "fix"), "x")
    result = Result(check=check, layer=layer, status=status, severity="high", statistics=found, evidence=(), **text)
    return Verdict(run="x", results=(result,))


@pytest.mark.parametrize(
    ("limit", "worst", "expected"),
    [
        (Limit("x", 1.0), 4.0, 6.0),
        (Limit("x", 1.0), -3.0, -2.0),  # nearer to 0 is worse
        (Limit("x", 1.0, above=False), 0.3, 0.2),
        (Limit("x", 1.0, above=False), -0.4, -0.6),
        (Limit("x", 1.0, bound=1.0), 0.9, 0.95),  # 1.35 could not be exceeded: half the way that is left
        (Limit("x", 1.0, bound=1.0, judged=0.1), 0.0, 0.1),
        (Limit("x", 1.0, above=False, judged=0.2), 0.6, 0.2),
    ],
)
def test_a_limit_is_half_as_far_again_as_the_worst_and_always_in_reach(limit, worst, expected):
    assert limit.calibrated(worst) == pytest.approx(expected)
    assert not Limit("x", limit.calibrated(worst), above=limit.above).broken_by(worst)


def test_the_worst_is_of_the_side_that_is_worse_and_runs_without_a_number_do_not_count():
    runs = {str(n): verdict(**{RATIO.name: float(n), LEAST.name: 0.005 * n}) for n in range(8, 13)}
    runs["6"] = verdict(status=Status.FINDING, **{RATIO.name: None})
    found = calibration.summary(runs)
    assert found["runs"] == 6
    jump, least = (found["statistics"][name] for name in (RATIO.name, LEAST.name))
    assert (jump["runs"], jump["worst"], jump["limit"], jump["median"]) == (5, 12.0, 18.0, 10.0)
    assert jump["p99"] == pytest.approx(11.96)  # 1 % below 12, of steps of 1 between five
    assert (least["worst"], least["limit"]) == (pytest.approx(0.04), 0.0267)
    assert limits.LARGE_GRADIENTS.name in found["not_measured"] and RATIO.name not in found["not_measured"]
    assert found["findings"] == {**{str(n): {} for n in range(8, 13)}, "6": {"R2": "high"}}


def test_limits_are_those_of_the_measured_runs_or_say_that_they_are_not():
    found = json.loads((ROOT / calibration.RESULT).read_bytes())
    if found["runs"] < limits.ENOUGH_RUNS:
        assert limits.CLEAN_RUNS == 0 and limits.source() == "ours, by judgement"
        return
    assert found["runs"] == limits.CLEAN_RUNS
    named = {limit.name: limit for limit in limits.every() if limit.ours}
    for name, each in found["statistics"].items():
        if name in named:  # not of a symptom that is gone
            assert named[name] == each["limit"] == named[name].calibrated(each["worst"]), name


@pytest.mark.parametrize("name", calibration.SETTINGS)
def test_the_runs_that_are_measured_have_params_that_are_allowed(name, tmp_path):
    assert calibration.load(Workspace(tmp_path), name, 7).rng_seed == 7
