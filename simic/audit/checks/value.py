"""Whether the critic predicts returns, and whether its advantages are sound."""

import numpy as np
from scipy import stats

from simic.agent.ppo import ADVANTAGE_SIGMA_FLOOR
from simic.audit import limits
from simic.audit.checks.base import Check, Outcome, Reading, check, undecided, weighed
from simic.audit.checks.shared import (
    EMA_DECAY,
    NOISE,
    OURS,
    PERSISTENT,
    TREND,
    Values,
    ema_before,
    spearman,
    sustained,
    where,
    windows,
)
from simic.audit.findings import number, percent
from simic.audit.record import RunRecord
from simic.evaluation.statistics import CONFIDENCE

# Below which explained variance means that the critic has collapsed, by how much of PPO's updates is done (up to).
PHASES = ((0.1, -0.5), (0.25, -0.2), (0.75, 0.0), (1.0, 0.1))


def explained_together(explained: Values, variance: Values) -> Values:
    """Share of the variance of returns that values explain over each stretch of updates ``[n, width]``: the upper end
    of its 95 % interval.

    A ratio of sums: the mean of the shares would be ruled by updates whose returns hardly differ, in which a small
    error is many times their variance. Its error: Cochran 1977, Sampling Techniques, chapter 6.
    """
    unexplained, width = (1.0 - explained) * variance, explained.shape[1]
    total = variance.sum(axis=1)
    share = unexplained.sum(axis=1) / total
    residual = unexplained - share[:, None] * variance
    error = np.sqrt((residual**2).sum(axis=1) * width / (width - 1)) / total
    return 1.0 - share + stats.t.ppf((1.0 + CONFIDENCE) / 2.0, width - 1) * error


@check
class ExplainedVariance(Check):
    """V1: a critic worse than a constant for long, or suspiciously perfect at once."""

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
    fix = "Check the scale of returns (V2) and the gradients (G1); raise ppo.value_coef."
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


@check
class ReturnScale(Check):
    """V2: networks regress badly onto targets far from unit scale."""

    id = "V2"
    title = "Value targets are badly scaled"
    severity = "medium"
    question = "Are the scaled returns of order 1?"
    needs = ("updates.return_max_abs",)
    minimum = 3
    PEAK, SHARE = 10.0, limits.HUGE_RETURNS
    threshold = f"|scaled return| > {PEAK:g} in more than {percent(SHARE)} of updates"
    source = "Andy Jones 2021 (ideal [-3, 3], outside [-10, 10] trouble); share " + OURS
    fix = "Switch on ppo.normalize_rewards; look for a reward component with rare huge values (P2)."
    passes_when = f"scaled returns stay within {PEAK:g} in most updates"

    def examine(self, run: RunRecord) -> Outcome:
        bad = run.updates.column("return_max_abs") > self.PEAK
        return weighed([Reading(self.SHARE, bad.mean(), None, where(run, "return_max_abs", bad))])


@check
class ValueLossTrend(Check):
    """V4: a value loss that climbs while returns do not change is a critic coming apart."""

    id = "V4"
    title = "Value loss rises while returns stand still"
    severity = "medium"
    question = "Is a rising value loss explained by rising returns?"
    needs = ("updates.value_loss", "episodes.return")
    minimum = TREND
    RISING, P_VALUE, FLAT = limits.RISE_OF_VALUE_LOSS, 0.01, 0.2
    threshold = (
        f"over the last {TREND} updates of PPO: Spearman(value loss, time) > {RISING:g} (p < {P_VALUE:g}), "
        f"|Spearman(return, time)| < {FLAT:g}"
    )
    source = "Unity ml-agents (rises with reward, falls when stable); numbers " + OURS
    fix = "Lower ppo.learning_rate; check V1."
    passes_when = "the value loss does not climb on its own"

    def examine(self, run: RunRecord) -> Outcome:
        loss = run.updates.column("value_loss")[-TREND:]
        returns = run.episodes.column("return").mean(axis=1)[-TREND:]
        rising, p_value = spearman(loss, np.arange(float(len(loss))))
        flat, _ = spearman(returns, np.arange(float(len(returns))))
        alone = p_value < self.P_VALUE and abs(flat) < self.FLAT
        return weighed([Reading(self.RISING, rising if alone else 0.0)]).of(len(loss))


@check
class ValueCollapse(Check):
    """V6: how bad a critic may be depends on how long it has learned."""

    id = "V6"
    title = "The critic has collapsed"
    severity = "high"
    question = "Does the critic explain enough of the returns for this phase of training, or is its loss small?"
    needs = ("updates.explained_variance", "updates.value_loss")
    minimum = PERSISTENT
    LOSS = limits.COLLAPSED_VALUE_LOSS
    threshold = (
        f"value loss > {LOSS:g} in units of scaled reward for {PERSISTENT} updates, each with an explained variance "
        "below " + ", ".join(f"{least:g} up to {percent(done)}" for done, least in PHASES) + " of the updates"
    )
    source = "phases: detector of an earlier system (its healthy updates lost 3.0 at most); number " + OURS
    fix = "Check V2 and G1; lower ppo.learning_rate; raise ppo.value_coef."
    passes_when = f"no such {PERSISTENT} updates follow each other"

    def examine(self, run: RunRecord) -> Outcome:
        train = run.params.train
        done = (run.updates.column("iteration") + 1) / max(1, train.iterations)
        ends, least = (np.array(column) for column in zip(*PHASES, strict=True))
        too_low = run.updates.column("explained_variance") < least[np.searchsorted(ends, np.minimum(done, 1))]
        loss = np.where(too_low, run.updates.column("value_loss"), 0.0)
        evidence = where(run, "value_loss", loss > self.LOSS)
        return weighed([Reading(self.LOSS, sustained(loss, PERSISTENT), None, evidence)])


@check
class ValueLossSpike(Check):
    """S1: one update whose value loss dwarfs the average so far deserves a look at its rollout."""

    id = "S1"
    title = "Value loss spikes"
    severity = "high"
    question = "Is the value loss of every update in line with those before it?"
    needs = ("updates.value_loss",)
    minimum = 5
    FACTOR, LOSS = 3.0, limits.SPIKE_OF_VALUE_LOSS
    threshold = f"> {FACTOR:g} x its moving average (decay {EMA_DECAY:g}) and > {LOSS:g} in units of scaled reward"
    source = "factor: paiml/entrenar#127; number " + OURS
    fix = "Inspect the steps of that iteration for a rare penalty, a rollback or a broken host."
    passes_when = f"no update exceeds both {FACTOR:g} x the average so far and {LOSS:g}"

    def examine(self, run: RunRecord) -> Outcome:
        loss = run.updates.column("value_loss")
        spikes = np.where(loss > self.FACTOR * np.nan_to_num(ema_before(loss), nan=np.inf), loss, 0.0)
        return weighed([Reading(self.LOSS, spikes.max(), None, where(run, "value_loss", spikes > self.LOSS))])


@check
class Advantages(Check):
    """A1: raw advantages should be centred; the critic is biased otherwise."""

    id = "A1"
    title = "Raw advantages are off centre or huge"
    severity = "medium"
    question = "Are advantages centred near 0 before normalisation?"
    needs = ("updates.advantage_mean", "updates.advantage_std", "updates.advantage_max_abs", "updates.samples")
    OFFSET, SHARE, PEAK = limits.OFFSET_OF_ADVANTAGES, limits.HUGE_ADVANTAGES, 10.0
    minimum = PERSISTENT
    threshold = (
        f"|mean| less {NOISE:g} standard errors > {OFFSET:g} standard deviations for {PERSISTENT} updates, or "
        f"|advantage| > {PEAK:g} in more than {percent(SHARE)} of updates"
    )
    source = "Andy Jones 2021; limits " + OURS
    fix = "A biased critic: check V1. Huge values: check reward scaling (V2)."
    passes_when = f"the mean is within {OFFSET:g} standard deviations of 0, and most peaks are below {PEAK:g}"

    def examine(self, run: RunRecord) -> Outcome:
        mean, std, peak = (run.updates.column(f"advantage_{name}") for name in ("mean", "std", "max_abs"))
        noise = NOISE / np.sqrt(np.maximum(run.updates.column("samples"), 1))
        offset = np.maximum(np.abs(mean) / np.maximum(std, 1e-12) - noise, 0.0)
        off = Reading(
            self.OFFSET, sustained(offset, PERSISTENT), None, where(run, "advantage_mean", offset > self.OFFSET)
        )
        huge = peak > self.PEAK
        return weighed([off, Reading(self.SHARE, huge.mean(), None, where(run, "advantage_max_abs", huge))])


@check
class AdvantageSpread(Check):
    """A2: no spread, nothing to learn from, and normalisation would blow up noise."""

    id = "A2"
    title = "Advantages have no spread"
    severity = "medium"
    question = "Do advantages differ between decisions?"
    needs = ("updates.advantage_std",)
    complete = False
    SMALLEST = limits.SPREAD_OF_ADVANTAGES
    threshold = f"standard deviation < {number(SMALLEST)}"
    source = "CleanRL (adds 1e-8 to the divisor)"
    fix = "Look at the rewards: constant rewards teach nothing."
    passes_when = "every update's advantages have spread"

    def examine(self, run: RunRecord) -> Outcome:
        std = run.updates.column("advantage_std")
        return weighed([Reading(self.SMALLEST, std.min(), None, where(run, "advantage_std", ~(std >= self.SMALLEST)))])
