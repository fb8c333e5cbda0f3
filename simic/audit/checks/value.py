"""Whether the critic predicts returns, and whether its advantages are sound."""

import numpy as np

from simic.audit.checks.base import Check, Outcome, check, found, judged, passed
from simic.audit.checks.shared import EMA_DECAY, OURS, RISING, TREND, ema_before, longest_run, spearman, where
from simic.audit.findings import number, percent
from simic.audit.record import RunRecord

VALUE_LOSS_LIMIT = 5.0  # in scaled reward; 400 healthy updates stayed below 3.0


@check
class ExplainedVariance(Check):
    """V1: a critic worse than a constant for long, or suspiciously perfect at once."""

    id = "V1"
    title = "The critic does not explain the returns"
    severity = "medium"
    question = "Is the critic better than a constant?"
    needs = ("updates.explained_variance", "updates.value_loss")
    UPDATES = 10  # below 0
    LATE, LOW = 0.5, 0.2
    FIRST, PERFECT = 5, 0.99
    minimum = UPDATES
    threshold = (
        f"< 0 for {UPDATES} updates: medium, high if the value loss also exceeds {VALUE_LOSS_LIMIT:g}; median of the "
        f"last {percent(LATE)} of the run < {LOW:g}: medium; > {PERFECT:g} within the first {FIRST} updates: low"
    )
    source = "Stable-Baselines3 logger (0 = a constant, < 0 worse); numbers " + OURS
    fix = "Check the scale of returns (V2) and the gradients (G1); raise ppo.value_coef."
    passes_when = f"explained variance rises above {LOW:g} and is never negative for long"

    def examine(self, run: RunRecord) -> Outcome:
        explained, loss = run.updates.column("explained_variance"), run.updates.column("value_loss")
        iteration = run.updates.column("iteration")
        measured = f"first {explained[0]:.2f}, last {explained[-1]:.2f}"
        if longest_run(explained < 0) >= self.UPDATES:
            severity = "high" if loss.max() > VALUE_LOSS_LIMIT else "medium"
            return found(measured, severity, where(run, "explained_variance", explained < 0))
        late = explained[iteration >= (1 - self.LATE) * run.params.train.iterations]
        if late.size and np.median(late) < self.LOW:
            return found(f"{measured}, median {np.median(late):.2f} in the last {percent(self.LATE)}", "medium")
        perfect = (explained > self.PERFECT) & (iteration < self.FIRST)
        if perfect.any():
            return found(measured, "low", where(run, "explained_variance", perfect))
        return passed(measured)


@check
class ReturnScale(Check):
    """V2: networks regress badly onto targets far from unit scale."""

    id = "V2"
    title = "Value targets are badly scaled"
    severity = "medium"
    question = "Are the scaled returns of order 1?"
    needs = ("updates.return_max_abs",)
    minimum = 3
    PEAK, SHARE = 10.0, 0.5
    threshold = f"|scaled return| > {PEAK:g} in more than {percent(SHARE)} of updates"
    source = "Andy Jones 2021 (ideal [-3, 3], outside [-10, 10] trouble); share " + OURS
    fix = "Switch on ppo.normalize_rewards; look for a reward component with rare huge values (P2)."
    passes_when = f"scaled returns stay within {PEAK:g} in most updates"

    def examine(self, run: RunRecord) -> Outcome:
        peak = run.updates.column("return_max_abs")
        bad = peak > self.PEAK
        measured = f"median peak {np.median(peak):.2f}, largest {peak.max():.2f}"
        return judged(bad.mean() > self.SHARE, measured, where(run, "return_max_abs", bad))


@check
class ValueLossTrend(Check):
    """V4: a value loss that climbs while returns do not change is a critic coming apart."""

    id = "V4"
    title = "Value loss rises while returns stand still"
    severity = "medium"
    question = "Is a rising value loss explained by rising returns?"
    needs = ("updates.value_loss", "episodes.return")
    minimum = TREND
    P_VALUE, FLAT = 0.01, 0.2
    threshold = (
        f"over the last {TREND} updates: Spearman(value loss, time) > {RISING:g} (p < {P_VALUE:g}), "
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
        bad = rising > RISING and p_value < self.P_VALUE and abs(flat) < self.FLAT
        return judged(bad, f"trend of value loss {rising:+.2f}, of returns {flat:+.2f}")


@check
class ValueLossSpike(Check):
    """S1: one update whose value loss dwarfs the average so far deserves a look at its rollout."""

    id = "S1"
    title = "Value loss spikes"
    severity = "high"
    question = "Is the value loss of every update in line with those before it?"
    needs = ("updates.value_loss",)
    minimum = 5
    FACTOR = 3.0
    threshold = (
        f"> {FACTOR:g} x its moving average (decay {EMA_DECAY:g}) and > {VALUE_LOSS_LIMIT:g} in units of scaled reward"
    )
    source = "factor: paiml/entrenar#127; floor: ours, 400 healthy updates stayed below 3.0"
    fix = "Inspect the steps of that iteration for a rare penalty, a rollback or a broken host."
    passes_when = f"no update exceeds both {FACTOR:g} x the average so far and {VALUE_LOSS_LIMIT:g}"

    def examine(self, run: RunRecord) -> Outcome:
        loss = run.updates.column("value_loss")
        bad = (loss > self.FACTOR * np.nan_to_num(ema_before(loss), nan=np.inf)) & (loss > VALUE_LOSS_LIMIT)
        measured = f"largest value loss {loss.max():.3g}, median {np.median(loss):.3g}"
        return judged(bad, measured, where(run, "value_loss", bad))


@check
class Advantages(Check):
    """A1: raw advantages should be centred; the critic is biased otherwise."""

    id = "A1"
    title = "Raw advantages are off centre or huge"
    severity = "medium"
    question = "Are advantages centred near 0 before normalisation?"
    needs = ("updates.advantage_mean", "updates.advantage_std", "updates.advantage_max_abs")
    UPDATES, OFFSET = 10, 0.5
    SHARE, PEAK = 0.5, 10.0
    minimum = UPDATES
    threshold = (
        f"|mean| > {OFFSET:g} standard deviations for {UPDATES} updates, or |advantage| > {PEAK:g} in more than "
        f"{percent(SHARE)} of updates"
    )
    source = "Andy Jones 2021; limits " + OURS
    fix = "A biased critic: check V1. Huge values: check reward scaling (V2)."
    passes_when = f"the mean is within {OFFSET:g} standard deviations of 0, and most peaks are below {PEAK:g}"

    def examine(self, run: RunRecord) -> Outcome:
        table = run.updates
        mean, std, peak = (table.column(f"advantage_{name}") for name in ("mean", "std", "max_abs"))
        offset = np.abs(mean) / np.maximum(std, 1e-12)
        measured = f"median |mean|/std {np.median(offset):.2f}, median peak {np.median(peak):.2f}"
        if longest_run(offset > self.OFFSET) >= self.UPDATES:
            return found(measured, None, where(run, "advantage_mean", offset > self.OFFSET))
        huge = peak > self.PEAK
        return judged(huge.mean() > self.SHARE, measured, where(run, "advantage_max_abs", huge))


@check
class AdvantageSpread(Check):
    """A2: no spread, nothing to learn from, and normalisation would blow up noise."""

    id = "A2"
    title = "Advantages have no spread"
    severity = "medium"
    question = "Do advantages differ between decisions?"
    needs = ("updates.advantage_std",)
    complete = False
    SMALLEST = 1e-8
    threshold = f"standard deviation < {number(SMALLEST)}"
    source = "CleanRL (adds 1e-8 to the divisor)"
    fix = "Look at the rewards: constant rewards teach nothing."
    passes_when = "every update's advantages have spread"

    def examine(self, run: RunRecord) -> Outcome:
        std = run.updates.column("advantage_std")
        bad = ~(std >= self.SMALLEST)
        return judged(bad, f"smallest {std.min():.3g}", where(run, "advantage_std", bad))
