"""The learned policy beside never growing, chance, the best constant and hand-written rules."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from simic.audit.checks.base import Outcome, check, failed, passed, undecided
from simic.audit.findings import percent
from simic.audit.record import RunRecord
from simic.evaluation import intervals
from simic.evaluation.endpoints import PATIENT, TUNED, mean_by_task
from simic.evaluation.gym_evaluation import PEER, RANDOM
from simic.evaluation.policies import RANDOM as RANDOM_LEGAL
from simic.evaluation.result import LEARNED

BASELINES_FIRST = "Schulman, Nuts and Bolts (run baselines first); mesozoic-labs#487"
BELOW = f"upper end of the paired {percent(intervals.CONFIDENCE)} interval below 0; one that contains 0: low"

comparison = partial(
    check,
    layer="learning",
    post_hoc=True,
    threshold=BELOW,
    source=BASELINES_FIRST,
    fix="Train longer; see which signs of bad learning are below; check that there is something to win.",
)


def _judged(gain: intervals.Interval, text: str, equal_is_low: bool = False) -> Outcome:
    """Judge a gain over another policy; exactly none is low if ``equal_is_low``."""
    # The interval decides and not the estimate: better by luck is not better.
    if gain.low > 0:
        return passed(text)
    evidence = [{"difference": gain.estimate, "low": gain.low, "high": gain.high}]
    # A rule may be the best there is, so that to equal it exactly is no grave finding.
    equal = gain.low == gain.high == 0
    if gain.high <= 0 and not (equal and equal_is_low):
        return failed(text, None, evidence)
    return failed(f"not shown to be better: {text}", "low", evidence)


def _against(run: RunRecord, rival: str, equal_is_low: bool = False) -> Outcome:
    """Compare test accuracies with another policy, paired by host.

    Hosts of one task count once, as their mean; with one task every host counts.
    """
    # A run of other params.evaluate.policies may lack the pair: that is no finding about learning.
    evaluation = run.evaluation
    assert evaluation is not None  # stated in needs
    if evaluation.comparison(LEARNED, rival) is None:
        return undecided(f"the evaluation does not compare {LEARNED} with {rival}")
    accuracies = [
        np.array(evaluation.policies[name].per_seed.test_accuracy_pct) for name in (LEARNED, rival)
    ]
    # Hosts of one task are no independent samples: counted singly they would make the interval too narrow.
    units = intervals.rows_by_task(dict(enumerate(evaluation.rows)))
    gain = intervals.mean_interval(mean_by_task(accuracies[0] - accuracies[1], units))
    tasks = len(set(evaluation.rows))
    place = f"{tasks} tasks" if tasks > 1 else f"{len(units)} hosts of one task"
    return _judged(gain, f"{_written(gain, 'points ')}vs {rival} on {place}", equal_is_low)


def _written(gain: intervals.Interval, unit: str = "") -> str:
    return f"{gain.estimate:+.4g} {unit}[{gain.low:+.4g}, {gain.high:+.4g}] "


# A policy equal to never growing or to chance has learned nothing.
FLOORS = {
    "F1": ("static", "never growing"),
    "F2": (RANDOM_LEGAL, "random growth"),
}
for check_id, (rival, words) in FLOORS.items():
    comparison(
        id=check_id,
        subject="growth",
        title=f"Not better than {words}",
        severity="critical",
        question=f"Is the learned policy better than {words}, on the test split?",
        needs=("evaluation",),
    )(partial(_against, rival=rival))


@comparison(
    id="F3",
    subject="growth",
    title="Not better than the hand-written rule",
    severity="medium",
    question="Is the learned policy better than the tuned rule, or else the patient one, on the test split?",
    needs=("evaluation",),
)
def _hand_rule(run: RunRecord) -> Outcome:
    assert run.evaluation is not None  # stated in needs
    return _against(run, TUNED if TUNED in run.evaluation.policies else PATIENT, equal_is_low=True)


@comparison(
    id="F4",
    subject="growth",
    title="Not better than the best constant schedule",
    severity="medium",
    question="Is the learned policy better than the schedule that is best for all tasks alike?",
    needs=("evaluation",),
)
def _best_constant(run: RunRecord) -> Outcome:
    assert run.evaluation is not None  # stated in needs
    standings = next(iter(run.evaluation.standings.values()))
    learned = standings.policies.get(LEARNED)
    if learned is None:
        return undecided("the trained policy was not evaluated")
    gain = learned.over_common
    return _judged(
        gain, f"{_written(gain, 'points ')}on {standings.tasks} tasks", equal_is_low=True
    )


@comparison(
    id="Y4",
    subject="gym",
    title="Not better than random actions",
    severity="critical",
    question="Is the return of the learned policy above that of random legal actions, in the same fresh episodes?",
    needs=("gym",),
)
def _random_actions(run: RunRecord) -> Outcome:
    return _returns_against(run, [RANDOM])


@comparison(
    id="Y5",
    subject="gym",
    title="Not better than a hand-written rule",
    severity="medium",
    question="Is the return of the learned policy above that of every rule, in the same fresh episodes?",
    needs=("gym", "gym_headroom"),
)
def _rules(run: RunRecord) -> Outcome:
    assert run.gym_headroom is not None  # stated in needs
    # The peer is a learner and not a rule, and chance has a check of its own (Y4).
    rules = [name for name in run.gym_headroom.policies if name not in (RANDOM, PEER)]
    return _returns_against(run, rules) if rules else undecided("headroom.gym.rules names no rule")


def _returns_against(run: RunRecord, rivals: Sequence[str]) -> Outcome:
    """Compare returns with the best of some policies."""
    assert run.gym is not None  # stated in needs
    gains = {pair.second: pair.difference for pair in run.gym.comparisons if pair.second in rivals}
    if not gains:
        return undecided("the trained policy was not evaluated")
    # The smallest gain is the one over the best rival: better than that is better than all.
    best = min(gains, key=lambda name: gains[name].estimate)
    return _judged(gains[best], f"{_written(gains[best])}over {best}", equal_is_low=best != RANDOM)
