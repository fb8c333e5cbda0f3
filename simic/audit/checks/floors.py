"""The learned policy beside never growing, chance and hand-written rules."""

import numpy as np

from simic.audit.checks.base import OURS, Outcome, failed, of_growth, passed, undecided
from simic.audit.findings import percent
from simic.audit.record import RunRecord
from simic.evaluation import statistics
from simic.evaluation.endpoints import PATIENT, TUNED
from simic.evaluation.result import LEARNED
from simic.telemetry.rows import Severity

BASELINES_FIRST = "Schulman, Nuts and Bolts (run baselines first); mesozoic-labs#487"


def _threshold(severity: Severity, least: str) -> str:
    return (
        f"upper end of the paired {percent(statistics.CONFIDENCE)} interval over tasks {least} 0: {severity}; interval "
        "contains 0: low"
    )


def _against(run: RunRecord, other: str, equal_is_low: bool = False) -> Outcome:
    """Compare the learned policy with one other, paired by host: below 0 is a finding of the check's severity, around 0
    a low one; exactly 0 is low if ``equal_is_low``. Hosts of one task count once, as their mean; with one task each
    host counts.
    """
    evaluation = run.evaluation
    assert evaluation is not None  # stated in needs
    if evaluation.comparison(LEARNED, other) is None:
        return undecided(f"the evaluation does not compare {LEARNED} with {other}")
    first, second = (np.array(evaluation.policies[name].per_seed.test_accuracy_pct) for name in (LEARNED, other))
    rows = np.array(evaluation.rows)
    tasks = np.unique(rows)
    gains = [float((first - second)[rows == task].mean()) for task in tasks]
    gain = statistics.mean_interval(gains if len(tasks) > 1 else first - second)
    where = f"{len(tasks)} tasks" if len(tasks) > 1 else f"{len(rows)} hosts of one task"
    said = f"{gain.estimate:+.2f} points [{gain.low:+.2f}, {gain.high:+.2f}] vs {other} on {where}"
    return judged_gain(gain, said, equal_is_low)


def judged_gain(gain: statistics.Interval, said: str, equal_is_low: bool = False) -> Outcome:
    """Judge a gain over another policy, which is ``said``."""
    if gain.low > 0:
        return passed(said)
    evidence = [{"difference": gain.estimate, "low": gain.low, "high": gain.high}]
    equal = gain.low == gain.high == 0
    if gain.high <= 0 and not (equal and equal_is_low):
        return failed(said, None, evidence)
    return failed(f"not shown to be better: {said}", "low", evidence)


# A policy equal to never growing or to chance has learned nothing.
@of_growth(
    id="F1",
    title="Not better than never growing",
    severity="critical",
    question="Is the learned policy better than never growing, on the test split?",
    needs=("evaluation",),
    threshold=_threshold("critical", "<="),
    source=BASELINES_FIRST,
    fix="Train longer; check the reward findings; check that the host is weak enough for growth to pay.",
)
def _never_growing(run: RunRecord) -> Outcome:
    return _against(run, "static")


@of_growth(
    id="F2",
    title="Not better than random growth",
    severity="critical",
    question="Is the learned policy better than random legal actions, on the test split?",
    needs=("evaluation",),
    threshold=_threshold("critical", "<="),
    source=BASELINES_FIRST,
    fix="Train longer; check the reward findings and entropy.",
)
def _chance(run: RunRecord) -> Outcome:
    return _against(run, "random_legal")


@of_growth(
    id="F3",
    title="Not better than the hand-written rule",
    severity="medium",
    question="Is the learned policy better than the tuned rule, or else the patient one, on the test split?",
    needs=("evaluation",),
    threshold=_threshold("medium", "<"),
    source=OURS,
    fix="Train longer; see in the report where it lost.",
)
def _rule_by_hand(run: RunRecord) -> Outcome:
    assert run.evaluation is not None  # stated in needs
    return _against(run, TUNED if TUNED in run.evaluation.policies else PATIENT, equal_is_low=True)  # it is as good
