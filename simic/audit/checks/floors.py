"""The learned policy beside never growing, chance, hand-written rules and schedules."""

import numpy as np

from simic.audit import limits
from simic.audit.checks.base import OURS, Outcome, Reading, failed, of_growth, passed, undecided
from simic.audit.findings import percent
from simic.audit.record import RunRecord
from simic.evaluation import statistics
from simic.evaluation.endpoints import PATIENT, TUNED
from simic.evaluation.result import LEARNED, Interval
from simic.telemetry.rows import Severity

BASELINES_FIRST = "Schulman, Nuts and Bolts (run baselines first); mesozoic-labs#487"


def _threshold(severity: Severity, least: str) -> str:
    return (
        f"upper end of the paired {percent(statistics.CONFIDENCE)} interval over tasks {least} 0: {severity}; interval "
        "contains 0: low"
    )


def _placed(gain: Interval, said: str, other: str, equal_is_low: bool) -> Outcome:
    """Judge an interval: below 0 is a finding of the check's severity, around 0 a low one; exactly 0 is low if
    ``equal_is_low``.
    """
    said = f"{gain.estimate:+.2f} points [{gain.low:+.2f}, {gain.high:+.2f}] {said}"
    evidence = [{"versus": other, "difference_pct": gain.estimate, "low": gain.low, "high": gain.high}]
    if gain.low > 0:
        return passed(said)
    equal = gain.low == gain.high == 0
    if gain.high <= 0 and not (equal and equal_is_low):
        return failed(said, None, evidence)
    return failed(f"not shown to be better: {said}", "low", evidence)


def _against(run: RunRecord, other: str, equal_is_low: bool = False) -> Outcome:
    """Compare the learned policy with one other, paired by host. Hosts of one task count once, as their mean; with one
    task each host counts.
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
    return _placed(gain, f"vs {other} on {where}", other, equal_is_low)


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


@of_growth(
    id="F4",
    title="Not better than the best common schedule",
    severity="medium",
    question="Is the learned policy better than the best common schedule, on the test splits of held-out tasks?",
    needs=("evaluation",),
    threshold=_threshold("medium", "<"),
    source=OURS,
    fix="Train longer; see in the report where it lost.",
)
def _common_schedule(run: RunRecord) -> Outcome:
    assert run.evaluation is not None  # stated in needs
    standings = next(iter(run.evaluation.standings.values()), None)
    if standings is None or LEARNED not in standings.policies:
        return undecided(f"the evaluation does not place {LEARNED} beside the common schedule")
    if standings.tasks == 1:
        return undecided("one held-out task says nothing about others")
    gain = standings.policies[LEARNED].over_common
    return _placed(gain, f"on {standings.tasks} tasks", "common schedule", equal_is_low=True)  # it may play that one


RUNS = 5


@of_growth(
    id="X4",
    title="Too few seeds behind the claim",
    severity="medium",
    question="Do enough evaluation seeds stand behind the comparison?",
    needs=("evaluation",),
    threshold=(
        f"fewer than {limits.EVALUATION_SEEDS:g} evaluation seeds behind a difference that is claimed, its interval "
        f"without 0: medium; behind none: low (a claim about learning needs {RUNS} training runs instead)"
    ),
    source="Henderson et al. 2018; Agarwal et al. 2021 (rliable)",
    fix="Raise evaluate.eval_seeds; for claims about learning train with several rng seeds.",
)
def _seeds(run: RunRecord) -> Outcome:
    evaluation = run.evaluation
    assert evaluation is not None  # stated in needs
    smallest = [c.minimum_detectable_pct for c in evaluation.comparisons]
    power = f", smallest detectable difference {min(smallest):.2f} to {max(smallest):.2f} points" if smallest else ""
    claimed = [c.second for c in evaluation.comparisons if c.difference_pct.low > 0 or c.difference_pct.high < 0]
    said = f"; claimed against {', '.join(claimed)}" if claimed else "; nothing is claimed"
    seeds = Reading(limits.EVALUATION_SEEDS, evaluation.eval_seeds, "medium" if claimed else "low")
    measured = f"{seeds}, 1 training run{power}{said}"
    return failed(measured, seeds.severity) if seeds.broken else passed(measured)
