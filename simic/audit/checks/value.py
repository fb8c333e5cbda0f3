"""Whether the critic predicts, and what the advantages look like that it gives."""

import numpy as np

from simic.audit.checks.base import OURS, Check, Outcome, check, ema_before, found, longest_run, passed, spearman, where
from simic.audit.record import RunRecord

VALUE_LOSS_LIMIT = 5.0  # in scaled reward; the earlier system's 400 healthy updates stayed below 3.0
LONG = 20


@check
class ExplainedVariance(Check):
    """V1: a critic worse than a constant for long, or suspiciously perfect at once."""

    id = "V1"
    title = "The critic does not explain the returns"
    severity = "medium"
    question = "Is the critic better than a constant?"
    needs = ("updates.explained_variance", "updates.value_loss")
    minimum = 10
    threshold = (
        "< 0 for 10 updates: medium, high if the value loss also exceeds 5; median of the second half < 0.2: medium; "
        "> 0.99 within the first 5 updates: low"
    )
    source = "Stable-Baselines3 logger (0 = a constant, < 0 worse); value-loss limit: earlier system; others " + OURS
    fix = "Check return scale (V2) and gradients of the value part (G2); raise ppo.value_coef."
    passes_when = "explained variance rises above 0.2 and is never negative for long"

    def examine(self, run: RunRecord) -> Outcome:
        explained, loss = run.updates.column("explained_variance"), run.updates.column("value_loss")
        iteration = run.updates.column("iteration")
        measured = f"first {explained[0]:.2f}, last {explained[-1]:.2f}"
        if longest_run(explained < 0) >= 10:
            severity = "high" if loss.max() > VALUE_LOSS_LIMIT else "medium"
            return found(measured, severity, where(run, "explained_variance", explained < 0))
        late = explained[iteration >= run.params.train.iterations / 2]
        if late.size and np.median(late) < 0.2:
            return found(f"{measured}, median of the second half {np.median(late):.2f}", "medium")
        perfect = (explained > 0.99) & (iteration < 5)
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
    threshold = "|scaled return| > 10 in more than half of the updates"
    source = "Andy Jones 2021 (ideal [-3, 3], outside [-10, 10] trouble); share " + OURS
    fix = "Switch on ppo.normalize_rewards; look for a reward component with rare huge values (P2)."
    passes_when = "scaled returns stay within 10 in most updates"

    def examine(self, run: RunRecord) -> Outcome:
        peak = run.updates.column("return_max_abs")
        measured = f"median peak {np.median(peak):.2f}, largest {peak.max():.2f}"
        bad = peak > 10
        return found(measured, None, where(run, "return_max_abs", bad)) if bad.mean() > 0.5 else passed(measured)


@check
class ValueLossTrend(Check):
    """V4: a value loss that climbs while returns do not change is a critic coming apart."""

    id = "V4"
    title = "Value loss rises while returns stand still"
    severity = "medium"
    question = "Is a rising value loss explained by rising returns?"
    needs = ("updates.value_loss", "episodes.return")
    minimum = LONG
    threshold = "over the last 20 updates: Spearman(value loss, time) > 0.5 (p < 0.01), |Spearman(return, time)| < 0.2"
    source = "Unity ml-agents (rises with reward, falls when stable); numbers " + OURS
    fix = "Lower ppo.learning_rate; check V1."
    passes_when = "the value loss does not climb on its own"

    def examine(self, run: RunRecord) -> Outcome:
        loss = run.updates.column("value_loss")[-LONG:]
        returns = run.episodes.column("return").mean(axis=1)[-LONG:]
        rising, p_value = spearman(loss, np.arange(float(len(loss))))
        flat, _ = spearman(returns, np.arange(float(len(returns))))
        measured = f"trend of value loss {rising:+.2f}, of returns {flat:+.2f}"
        bad = rising > 0.5 and p_value < 0.01 and abs(flat) < 0.2
        return found(measured) if bad else passed(measured)


@check
class ValueLossSpike(Check):
    """S1: one update whose value loss dwarfs the average so far deserves a look at its rollout."""

    id = "S1"
    title = "Value loss spikes"
    severity = "high"
    question = "Is the value loss of every update in line with those before it?"
    needs = ("updates.value_loss",)
    minimum = 5
    threshold = "> 3 x its moving average (decay 0.9) and > 5 in scaled reward"
    source = "factor 3: paiml/entrenar#127; floor of 5: earlier system's healthy maximum was 3.0"
    fix = "Inspect the steps of that iteration: a rare penalty, a rollback, a broken host."
    passes_when = "no update exceeds three times the average by more than the floor"

    def examine(self, run: RunRecord) -> Outcome:
        loss = run.updates.column("value_loss")
        bad = (loss > 3 * np.nan_to_num(ema_before(loss), nan=np.inf)) & (loss > VALUE_LOSS_LIMIT)
        measured = f"largest value loss {loss.max():.3g}, median {np.median(loss):.3g}"
        return found(measured, None, where(run, "value_loss", bad)) if bad.any() else passed(measured)


@check
class Advantages(Check):
    """A1: raw advantages should be centred; the critic is biased otherwise."""

    id = "A1"
    title = "Raw advantages are off centre or huge"
    severity = "medium"
    question = "Are advantages centred near 0 before normalisation?"
    needs = ("updates.advantage_mean", "updates.advantage_std", "updates.advantage_max_abs")
    minimum = 10
    threshold = "|mean| > 0.5 standard deviations for 10 updates, or |advantage| > 10 in more than half of the updates"
    source = "Andy Jones 2021; limits " + OURS
    fix = "A biased critic: check V1. Huge values: check reward scaling (V2)."
    passes_when = "advantages are centred within half a standard deviation and below 10"

    def examine(self, run: RunRecord) -> Outcome:
        table = run.updates
        mean, std, peak = (table.column(f"advantage_{name}") for name in ("mean", "std", "max_abs"))
        offset = np.abs(mean) / np.maximum(std, 1e-12)
        measured = f"median |mean|/std {np.median(offset):.2f}, median peak {np.median(peak):.2f}"
        if longest_run(offset > 0.5) >= 10:
            return found(measured, None, where(run, "advantage_mean", offset > 0.5))
        if (peak > 10).mean() > 0.5:
            return found(measured, None, where(run, "advantage_max_abs", peak > 10))
        return passed(measured)


@check
class AdvantageSpread(Check):
    """A2: no spread, nothing to learn from, and normalisation would blow up noise."""

    id = "A2"
    title = "Advantages have no spread"
    severity = "medium"
    question = "Do advantages differ between decisions?"
    needs = ("updates.advantage_std",)
    complete = False
    threshold = "standard deviation < 1e-8"
    source = "CleanRL (adds 1e-8 to the divisor)"
    fix = "Look at the rewards: constant rewards teach nothing."
    passes_when = "every update's advantages have spread"

    def examine(self, run: RunRecord) -> Outcome:
        std = run.updates.column("advantage_std")
        measured = f"smallest {std.min():.3g}"
        bad = ~(std >= 1e-8)
        return found(measured, None, where(run, "advantage_std", bad)) if bad.any() else passed(measured)
