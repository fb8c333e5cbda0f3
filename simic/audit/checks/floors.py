"""The learned policy beside never growing, chance, hand-written rules and schedules."""

import numpy as np

from simic.audit import limits
from simic.audit.checks.base import OURS, Check, Outcome, Reading, check, failed, passed, undecided
from simic.audit.findings import Evidence, percent
from simic.audit.record import RunRecord
from simic.evaluation import statistics
from simic.evaluation.endpoints import PATIENT, TUNED
from simic.evaluation.result import LEARNED, Evaluation, Interval
from simic.telemetry.rows import Severity

BASELINES_FIRST = "Schulman, Nuts and Bolts (run baselines first); mesozoic-labs#487"
INTERVAL = f"paired {percent(statistics.CONFIDENCE)} interval"


def _over_tasks(evaluation: Evaluation, other: str) -> tuple[Interval, int]:
    """Return learned − other with its interval, and the number of tasks. Hosts of one task count once, as their mean;
    with one task each host counts.
    """
    first, second = (np.array(evaluation.policies[name].per_seed.test_accuracy_pct) for name in (LEARNED, other))
    rows = np.array(evaluation.rows)
    tasks = np.unique(rows)
    gains = [float((first - second)[rows == task].mean()) for task in tasks]
    return statistics.mean_interval(gains if len(tasks) > 1 else first - second), len(tasks)


def _not_better(severity: Severity, least: str = "<=") -> str:
    return f"upper end of the {INTERVAL} over tasks {least} 0: {severity}; interval contains 0: low"


def _placed(gain: Interval, said: str, evidence: Evidence, equal_is_low: bool) -> Outcome:
    """Judge an interval: below 0 is a finding of the check's severity, around 0 a low one; exactly 0 is low if
    ``equal_is_low``.
    """
    upper = Reading(limits.BETTER, gain.high).statistic
    equal = gain.low == gain.high == limits.BETTER
    if gain.high <= limits.BETTER and not (equal and equal_is_low):
        return failed(said, None, (evidence,)).showing(upper)
    if gain.low <= limits.BETTER:
        return failed(f"not shown to be better: {said}", "low", (evidence,)).showing(upper)
    return passed(said).showing(upper)


class Floor(Check):
    """Compare the learned policy with one other, paired by host."""

    needs = ("evaluation",)
    other: str
    source = OURS
    passes_when = "the whole interval lies above 0"
    equal_is_low = False  # a policy equal to never growing or to chance has learned nothing

    def against(self, evaluation: Evaluation) -> str:
        """Return the name of the other policy."""
        return self.other

    def examine(self, run: RunRecord) -> Outcome:
        assert run.evaluation is not None
        other = self.against(run.evaluation)
        comparison = run.evaluation.comparison(LEARNED, other)
        if comparison is None:
            return undecided(f"the evaluation does not compare {LEARNED} with {other}").of(0)
        gain, tasks = _over_tasks(run.evaluation, other)
        where = f"{tasks} tasks" if tasks > 1 else f"{comparison.seeds} hosts of one task"
        said = f"{gain.estimate:+.2f} points [{gain.low:+.2f}, {gain.high:+.2f}] vs {other} on {where}"
        evidence: Evidence = {
            "versus": other, "difference_pct": gain.estimate, "low": gain.low, "high": gain.high
        }  # fmt: skip
        return _placed(gain, said, evidence, self.equal_is_low).of(comparison.seeds)


@check
class DoNothing(Floor):
    """Check F1: the policy is better than never growing."""

    id = "F1"
    title = "Not better than never growing"
    severity = "critical"
    other = "static"
    question = "Is the learned policy better than never growing, on the test split?"
    threshold = _not_better(severity)
    source = BASELINES_FIRST
    fix = "Train longer; check the reward findings; check that the host is weak enough for growth to pay."


@check
class Chance(Floor):
    """Check F2: the policy is better than random legal actions."""

    id = "F2"
    title = "Not better than random growth"
    severity = "critical"
    other = "random_legal"
    question = "Is the learned policy better than random legal actions, on the test split?"
    threshold = _not_better(severity)
    source = BASELINES_FIRST
    fix = "Train longer; check the reward findings and entropy."


@check
class RuleByHand(Floor):
    """Check F3: the policy is better than a hand-written rule."""

    id = "F3"
    title = "Not better than the hand-written rule"
    severity = "medium"
    other = PATIENT
    question = "Is the learned policy better than the tuned rule, or else the patient one, on the test split?"
    threshold = _not_better(severity, "<")
    equal_is_low = True  # it is as good
    fix = "Train longer; see in the report where it lost."

    def against(self, evaluation: Evaluation) -> str:
        """Return the tuned rule where it was played."""
        return TUNED if TUNED in evaluation.policies else self.other


@check
class CommonSchedule(Check):
    """Check F4: the policy is better than the best common schedule."""

    id = "F4"
    title = "Not better than the best common schedule"
    severity = "medium"
    question = "Is the learned policy better than the best common schedule, on the test splits of held-out tasks?"
    needs = ("evaluation",)
    counted = "held-out task"
    threshold = _not_better(severity, "<")
    source = OURS
    fix = "Train longer; see in the report where it lost."
    passes_when = "the whole interval lies above 0"

    def examine(self, run: RunRecord) -> Outcome:
        assert run.evaluation is not None
        standings = next(iter(run.evaluation.standings.values()), None)
        if standings is None or LEARNED not in standings.policies:
            return undecided(f"the evaluation does not place {LEARNED} beside the common schedule").of(0)
        if standings.tasks == 1:
            return undecided("one held-out task says nothing about others").of(1)
        gain = standings.policies[LEARNED].over_common
        said = f"{gain.estimate:+.2f} points [{gain.low:+.2f}, {gain.high:+.2f}] on {standings.tasks} tasks"
        evidence: Evidence = {"gain_pct": gain.estimate, "low": gain.low, "high": gain.high}
        return _placed(gain, said, evidence, equal_is_low=True).of(standings.tasks)  # it may play that very schedule


@check
class Seeds(Check):
    """Check X4: enough evaluation seeds stand behind a claim."""

    id = "X4"
    title = "Too few seeds behind the claim"
    severity = "medium"
    question = "Do enough evaluation seeds stand behind the comparison?"
    needs = ("evaluation",)
    SEEDS, RUNS = limits.EVALUATION_SEEDS, 5
    threshold = (
        f"fewer than {SEEDS:g} evaluation seeds behind a difference that is claimed, its interval without 0: medium; "
        f"behind none: low (a claim about learning needs {RUNS} training runs instead)"
    )
    source = "Henderson et al. 2018; Agarwal et al. 2021 (rliable)"
    fix = "Raise evaluate.eval_seeds; for claims about learning train with several rng seeds."
    passes_when = f"{SEEDS:g} or more seeds; the report still speaks of this checkpoint only"

    def examine(self, run: RunRecord) -> Outcome:
        evaluation = run.evaluation
        assert evaluation is not None
        smallest = [c.minimum_detectable_pct for c in evaluation.comparisons]
        power = (
            f", smallest detectable difference {min(smallest):.2f} to {max(smallest):.2f} points" if smallest else ""
        )
        claimed = [c.second for c in evaluation.comparisons if c.difference_pct.low > 0 or c.difference_pct.high < 0]
        said = f"; claimed against {', '.join(claimed)}" if claimed else "; nothing is claimed"
        seeds = Reading(self.SEEDS, evaluation.eval_seeds, "medium" if claimed else "low")
        measured = f"{seeds}, 1 training run{power}{said}"
        outcome = failed(measured, seeds.severity) if seeds.broken else passed(measured)
        return outcome.showing(seeds.statistic)
