"""The critic: explained variance."""

import numpy as np
from scipy import stats

from simic.agent.ppo import ADVANTAGE_SIGMA_FLOOR
from simic.audit import limits
from simic.audit.checks.base import (
    OURS,
    PERSISTENT,
    Check,
    Outcome,
    Reading,
    Values,
    check,
    undecided,
    weighed,
    where,
    windows,
)
from simic.audit.findings import percent
from simic.audit.record import RunRecord
from simic.evaluation.statistics import CONFIDENCE


def explained_together(explained: Values, variance: Values) -> Values:
    """Return the upper end of the 95 % interval of the share of returns' variance that values explain over each stretch
    of updates ``[n, width]``.

    It is a ratio of sums (Cochran 1977, Sampling Techniques, chapter 6): a mean of shares would be ruled by updates
    whose returns hardly differ.
    """
    unexplained, width = (1.0 - explained) * variance, explained.shape[1]
    total = variance.sum(axis=1)
    share = unexplained.sum(axis=1) / total
    residual = unexplained - share[:, None] * variance
    error = np.sqrt((residual**2).sum(axis=1) * width / (width - 1)) / total
    return 1.0 - share + stats.t.ppf((1.0 + CONFIDENCE) / 2.0, width - 1) * error


@check
class ExplainedVariance(Check):
    """Check V1: the critic is not worse than a constant for long, nor perfect at once."""

    id = "V1"
    title = "The critic does not explain the returns"
    severity = "medium"
    question = "Is the critic better than a constant?"
    needs = ("updates.explained_variance", "updates.return_std")
    minimum = PERSISTENT
    counted = "update whose returns differ"
    CONSTANT, LOW, PERFECT = limits.EXPLAINED_VARIANCE, limits.LATE_EXPLAINED_VARIANCE, limits.UNEXPLAINED_EARLY
    LASTING, LATE, ENOUGH, FIRST = 10, 0.5, 10, 5
    threshold = (
        f"of updates whose returns deviate by {ADVANTAGE_SIGMA_FLOOR:g} or more, taken together, the upper end of the "
        f"{percent(CONFIDENCE)} interval: of {LASTING} (of all where there are fewer) < {CONSTANT:g}; of the last "
        f"{percent(LATE)}, if {ENOUGH}, < {LOW:g}: medium; unexplained < {PERFECT:g} within the first "
        f"{FIRST}: low"
    )
    source = "Stable-Baselines3 logger (0 = a constant, < 0 worse); other numbers " + OURS
    fix = "Check the scale of returns and the gradients (G1); raise ppo.value_coef."
    passes_when = f"explained variance rises above {LOW:g} and is never negative for long"

    def examine(self, run: RunRecord) -> Outcome:
        # Where returns hardly differ there is nothing to explain: the share of next to nothing is any number.
        differ = run.updates.column("return_std") >= ADVANTAGE_SIGMA_FLOOR
        if differ.sum() < self.minimum:
            return undecided(f"returns differ in {differ.sum()} updates, {self.minimum} are needed").of(differ.sum())
        updates = run.updates.where(differ)
        explained, iteration = updates.column("explained_variance"), updates.column("iteration")
        variance = updates.column("return_std") ** 2
        together = explained_together(windows(explained, self.LASTING), windows(variance, self.LASTING))
        bad = where(run, "explained_variance", differ & (run.updates.column("explained_variance") < 0))
        readings = [Reading(self.CONSTANT, together.min(), "medium", bad)]
        train = run.params.train
        late = iteration >= (1 - self.LATE) * train.iterations
        if late.sum() >= self.ENOUGH:
            readings.append(
                Reading(self.LOW, explained_together(explained[None, late], variance[None, late])[0], "medium")
            )
        first = explained[iteration < self.FIRST]
        readings += [Reading(self.PERFECT, 1 - first.max(), "low")] if first.size else []
        return weighed(readings).of(differ.sum())
