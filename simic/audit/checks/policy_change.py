"""How far an update moved the policy: replay, ratios, divergence, clipping, Adam."""

import numpy as np
import torch

from simic.agent.ppo import EARLY_STOP, RATIO_TOLERANCE
from simic.audit.checks.base import (
    OURS,
    Check,
    Outcome,
    check,
    ema_before,
    found,
    longest_run,
    passed,
    rolling_median,
    where,
)
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity

PERSISTENT = 5  # consecutive updates


@check
class FirstRatio(Check):
    """R1: the update must reproduce the log-probabilities that were stored when acting."""

    id = "R1"
    title = "Replay does not reproduce what acted"
    severity = "critical"
    question = "Is the ratio of the first minibatch 1 before any step?"
    needs = ("updates.first_ratio_deviation", "params")
    complete = False
    threshold = "max |ratio - 1| <= 1e-4 in float32, 5e-2 in bfloat16 (the trainer's own tolerance)"
    source = "Huang et al. 2022, 37 implementation details of PPO: the ratio must be 1"
    fix = "Replay the same normalised observations, masks, precision and initial hidden state that were acted on."
    passes_when = "the largest deviation of every update is within the tolerance of its precision"

    def examine(self, run: RunRecord) -> Outcome:
        deviation = run.updates.column("first_ratio_deviation")
        tolerance = RATIO_TOLERANCE[getattr(torch, run.params.train.policy.precision)]
        bad = ~(deviation <= tolerance)  # NaN is bad
        worst = f"largest |ratio - 1| {np.max(deviation):.3g}"
        return found(worst, None, where(run, "first_ratio_deviation", bad)) if bad.any() else passed(worst)


@check
class RatioExplosion(Check):
    """R2: single ratios far from 1 make the clipped objective meaningless."""

    id = "R2"
    title = "Importance ratios explode"
    severity = "high"
    question = "Do ratios stay within reach of the clip range?"
    needs = ("updates.ratio_mean", "updates.ratio_min", "updates.ratio_max")
    threshold = "mean ratio of an update > 10: high; any ratio > 5 or < 0.1: medium"
    source = "mean: TRL ratio_threshold 10; single ratios: earlier system's anomaly detector"
    fix = "Lower ppo.learning_rate or ppo.epochs; check R1 first."
    passes_when = "mean ratios stay below 10 and every ratio within [0.1, 5]"

    def examine(self, run: RunRecord) -> Outcome:
        table = run.updates
        low, high, mean = table.column("ratio_min"), table.column("ratio_max"), table.column("ratio_mean")
        measured = f"ratios from {low.min():.3g} to {high.max():.3g}, largest mean {mean.max():.3g}"
        if (mean > 10).any():
            return found(measured, "high", where(run, "ratio_mean", mean > 10))
        if (high > 5).any():
            return found(measured, "medium", where(run, "ratio_max", high > 5))
        if (low < 0.1).any():
            return found(measured, "medium", where(run, "ratio_min", low < 0.1))
        return passed(measured)


@check
class Divergence(Check):
    """R3: sustained KL means steps too large for the trust region; none at all means no learning."""

    id = "R3"
    title = "Updates move the policy too far, or not at all"
    severity = "critical"
    question = "Is the divergence per update small, but not zero?"
    needs = ("updates.approx_kl",)
    minimum = PERSISTENT
    threshold = (
        "median of 5 consecutive updates > 0.1: critical; > 0.05: high; > max(0.02, 1.5 x target_kl): medium; "
        "all < 1e-8: medium"
    )
    source = (
        "Huang et al. 2022 (below 0.02); Spinning Up (target 0.01-0.05, stop at 1.5x); window of 5: ours, uncalibrated"
    )
    fix = (
        "Lower ppo.learning_rate, ppo.epochs, or set ppo.target_kl; at zero, check gradients (G1) and advantages (A2)."
    )
    passes_when = "the running median stays between 1e-8 and the early-stop limit"

    def examine(self, run: RunRecord) -> Outcome:
        kl = run.updates.column("approx_kl")
        sustained = float(rolling_median(kl, PERSISTENT).max())
        measured = f"largest median KL of {PERSISTENT} updates {sustained:.3g}"
        usual = max(0.02, EARLY_STOP * (run.params.train.ppo.target_kl or 0.0))
        limits: tuple[tuple[float, Severity], ...] = ((0.1, "critical"), (0.05, "high"), (usual, "medium"))
        for limit, severity in limits:
            if sustained > limit:
                return found(measured, severity, where(run, "approx_kl", kl > limit))
        if np.abs(kl).max() < 1e-8:
            return found(f"no update moved the policy: largest KL {np.abs(kl).max():.1g}", "medium")
        return passed(measured)


@check
class KLEstimates(Check):
    """R4: a negative exact KL, or estimators that disagree beyond their noise, is a wrong ratio."""

    id = "R4"
    title = "KL is negative or its estimators disagree"
    severity = "high"
    question = "Do k1 and k3 estimate the same divergence, and is the exact one >= 0?"
    needs = ("updates.exact_kl", "updates.kl_k1", "updates.approx_kl")
    minimum = 10
    threshold = "exact KL < -1e-6; or mean k1 and k3 differ by more than a factor 2 and by more than 4 standard errors"
    source = "TRL (negative KL precedes failure); Schulman, Approximating KL divergence; noise rule " + OURS
    fix = "Check that log-probabilities are summed over exactly the relevant heads, when acting and when replaying."
    passes_when = "exact KL is never negative and both estimates agree within noise"

    def examine(self, run: RunRecord) -> Outcome:
        exact, k1, k3 = (run.updates.column(name) for name in ("exact_kl", "kl_k1", "approx_kl"))
        if (exact < -1e-6).any():
            return found(f"smallest exact KL {exact.min():.3g}", None, where(run, "exact_kl", exact < -1e-6))
        difference = k1 - k3
        error = difference.std(ddof=1) / np.sqrt(len(difference))
        low, high = sorted((float(k1.mean()), float(k3.mean())))
        measured = f"mean k1 {k1.mean():.3g}, mean k3 {k3.mean():.3g}"
        apart = high > 2 * max(low, 0.0) and abs(difference.mean()) > 4 * error and high > 1e-6
        return found(measured) if apart else passed(measured)


@check
class EarlyStops(Check):
    """R5: most updates ending in their first epoch waste the rollout."""

    id = "R5"
    title = "Most updates stop in their first epoch"
    severity = "medium"
    question = "Do updates get beyond their first epoch?"
    needs = ("updates.stopped_early", "updates.epochs")
    minimum = PERSISTENT
    threshold = "more than 50 % of updates stop in epoch 1"
    source = "Spinning Up (early stop); Dossa et al. 2021; share: ours, uncalibrated"
    fix = "Lower ppo.learning_rate or use fewer minibatches."
    passes_when = "at most half of the updates stop in epoch 1"

    def examine(self, run: RunRecord) -> Outcome:
        first = (run.updates.column("stopped_early") > 0) & (run.updates.column("epochs") <= 1)
        measured = f"{100 * first.mean():.0f} % of updates"
        return found(measured) if first.mean() > 0.5 else passed(measured)


@check
class ClipFraction(Check):
    """R6: much clipping with a large KL wastes data; none with all epochs run means timid steps."""

    id = "R6"
    title = "Clip fraction out of its healthy range"
    severity = "high"
    question = "Is a moderate share of ratios clipped?"
    needs = ("updates.clip_fraction", "updates.approx_kl")
    minimum = PERSISTENT
    threshold = "> 0.3 with KL > 0.05 for 5 updates: high; < 0.001 in every update: low"
    source = "community run-book (0.05-0.20 healthy), " + OURS
    fix = "Too much: lower ppo.learning_rate. None at all: raise it, or ppo.epochs."
    passes_when = "some ratios are clipped, and never more than 30 % with a large KL"

    def examine(self, run: RunRecord) -> Outcome:
        clipped, kl = run.updates.column("clip_fraction"), run.updates.column("approx_kl")
        measured = f"median {np.median(clipped):.3f}, largest {clipped.max():.3f}"
        bad = (clipped > 0.3) & (kl > 0.05)
        if longest_run(bad) >= PERSISTENT:
            return found(measured, "high", where(run, "clip_fraction", bad))
        return found(measured, "low") if clipped.max() < 1e-3 else passed(measured)


@check
class SecondMoment(Check):
    """R7: a jump of Adam's second moment announces unstable training."""

    id = "R7"
    title = "Adam's second moment jumps"
    severity = "medium"
    question = "Does the largest second moment grow smoothly?"
    needs = ("updates.max_second_moment",)
    minimum = PERSISTENT
    threshold = "more than 10 x its moving average (decay 0.9)"
    source = "Sample Factory adam_max_second_moment; factor " + OURS
    fix = "Look at the rollout of that iteration: outlying rewards or advantages; lower ppo.max_grad_norm."
    passes_when = "it never exceeds 10 x its average so far"

    def examine(self, run: RunRecord) -> Outcome:
        moment = run.updates.column("max_second_moment")
        ratio = (moment / np.maximum(ema_before(moment), 1e-30))[1:]
        measured = f"largest jump {ratio.max():.2f} x its average"
        bad = np.concatenate(([False], ratio > 10))
        return found(measured, None, where(run, "max_second_moment", bad)) if bad.any() else passed(measured)


@check
class LogProbabilities(Check):
    """R8: log-probabilities in the hundreds are distributions that fluctuate wildly."""

    id = "R8"
    title = "Log-probability of a taken action is huge"
    severity = "medium"
    question = "Are the actions taken plausible under the policy that replays them?"
    needs = ("updates.max_abs_log_prob",)
    threshold = "|log-probability| > 100"
    source = "Sample Factory metrics reference (hundreds or thousands = fluctuating distributions)"
    fix = "Lower ppo.learning_rate; raise ppo.entropy_coef_final."
    passes_when = "every log-probability stays within 100"

    def examine(self, run: RunRecord) -> Outcome:
        values = run.updates.column("max_abs_log_prob")
        measured = f"largest {values.max():.3g}"
        return (
            found(measured, None, where(run, "max_abs_log_prob", values > 100))
            if (values > 100).any()
            else passed(measured)
        )
