"""How far an update moved the policy: replay, ratios, divergence, clipping, Adam."""

import numpy as np
import torch

from simic.agent.ppo import EARLY_STOP, RATIO_TOLERANCE
from simic.audit.checks.base import Check, Outcome, check, found, judged, passed, undecided
from simic.audit.checks.shared import EMA_DECAY, OURS, PERSISTENT, ema_before, longest_run, rolling_median, where
from simic.audit.findings import number, percent
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity


@check
class FirstRatio(Check):
    """R1: the update must reproduce the log-probabilities that were stored when acting."""

    id = "R1"
    title = "The update does not reproduce the log-probabilities of acting"
    severity = "critical"
    question = "Is the ratio of the first minibatch 1 before any optimiser step?"
    needs = ("updates.first_ratio_deviation", "params")
    complete = False  # of PPO's updates: those of the warm start clone, and have no ratio
    threshold = "|ratio - 1| above the trainer's own tolerance: " + ", ".join(
        f"{number(tolerance)} in {str(precision).removeprefix('torch.')}"
        for precision, tolerance in RATIO_TOLERANCE.items()
    )
    source = "Huang et al. 2022, 37 implementation details of PPO: the ratio must be 1"
    fix = "Replay with the normalised observations, masks, precision and initial hidden state used when acting."
    passes_when = "the largest deviation of every update of PPO is within the tolerance of its precision"

    def examine(self, run: RunRecord) -> Outcome:
        train, deviation = run.params.train, run.updates.column("first_ratio_deviation")
        of_ppo = run.updates.column("iteration") >= train.taught
        tolerance = RATIO_TOLERANCE[getattr(torch, train.policy.precision)]
        bad = of_ppo & ~(deviation <= tolerance)  # NaN is bad
        largest = np.max(deviation[of_ppo])
        return judged(bad, f"largest |ratio - 1| {largest:.3g}", where(run, "first_ratio_deviation", bad))


@check
class RatioExplosion(Check):
    """R2: single ratios far from 1 make the clipped objective meaningless."""

    id = "R2"
    title = "Importance ratios explode"
    severity = "high"
    question = "Do importance ratios stay near the clip range?"
    needs = ("updates.ratio_mean", "updates.ratio_min", "updates.ratio_max")
    MEAN, LOWEST, HIGHEST = 10.0, 0.1, 5.0
    threshold = f"mean ratio of an update > {MEAN:g}: high; any ratio > {HIGHEST:g} or < {LOWEST:g}: medium"
    source = "mean: TRL ratio_threshold 10; single ratios " + OURS
    fix = "Lower ppo.learning_rate or ppo.epochs; check R1 first."
    passes_when = f"mean ratios stay below {MEAN:g} and every ratio within [{LOWEST:g}, {HIGHEST:g}]"

    def examine(self, run: RunRecord) -> Outcome:
        table = run.updates
        low, high, mean = table.column("ratio_min"), table.column("ratio_max"), table.column("ratio_mean")
        measured = f"ratios from {low.min():.3g} to {high.max():.3g}, largest mean {mean.max():.3g}"
        if (mean > self.MEAN).any():
            return found(measured, "high", where(run, "ratio_mean", mean > self.MEAN))
        if (high > self.HIGHEST).any():
            return found(measured, "medium", where(run, "ratio_max", high > self.HIGHEST))
        if (low < self.LOWEST).any():
            return found(measured, "medium", where(run, "ratio_min", low < self.LOWEST))
        return passed(measured)


@check
class Divergence(Check):
    """R3: sustained KL means steps too large for the trust region; none at all means no learning."""

    id = "R3"
    title = "Updates move the policy too far, or not at all"
    severity = "critical"
    question = "Is the KL divergence per update small, but not zero?"
    # Of the whole update: an estimate at its last minibatch measures the rule that stops there.
    needs = ("updates.exact_kl",)
    minimum = PERSISTENT
    CRITICAL, HIGH, USUAL, NONE = 0.1, 0.05, 0.02, 1e-8
    threshold = (
        f"median of {PERSISTENT} consecutive updates > {CRITICAL:g}: critical; > {HIGH:g}: high; "
        f"> max({USUAL:g}, {EARLY_STOP:g} x target_kl): medium; all < {number(NONE)}: medium"
    )
    source = "Huang et al. 2022 (below 0.02); Spinning Up (target 0.01-0.05, stop at 1.5x); window " + OURS
    fix = (
        "Lower ppo.learning_rate, ppo.epochs, or set ppo.target_kl; at zero, check gradients (G1) and advantages (A2)."
    )
    passes_when = "the running median stays within the lowest limit, and some update moves the policy"

    def examine(self, run: RunRecord) -> Outcome:
        kl = run.updates.column("exact_kl")
        sustained = float(rolling_median(kl, PERSISTENT).max())
        measured = f"largest median KL of {PERSISTENT} updates {sustained:.3g}"
        usual = max(self.USUAL, EARLY_STOP * (run.params.train.ppo.target_kl or 0.0))
        limits: list[tuple[float, Severity]] = [(self.CRITICAL, "critical"), (self.HIGH, "high"), (usual, "medium")]
        for limit, severity in limits:
            if sustained > limit:
                return found(measured, severity, where(run, "exact_kl", kl > limit))
        if np.abs(kl).max() < self.NONE:
            return found(f"no update moved the policy: largest KL {np.abs(kl).max():.1g}", "medium")
        return passed(measured)


@check
class Spike(Check):
    """R9: one update that moved the policy far can undo what many had learned."""

    id = "R9"
    title = "One update moved the policy far"
    severity = "high"
    question = "Is the exact KL of every single update moderate?"
    needs = ("updates.exact_kl",)
    MOST = 0.25
    threshold = f"exact KL of any update > {MOST:g}"
    source = "Schulman, Nuts and Bolts (0.01 is small, 10 far too much); number " + OURS
    fix = "Look at the rewards and gradients of that iteration; set ppo.target_kl or lower ppo.learning_rate."
    passes_when = f"no update exceeds {MOST:g}"

    def examine(self, run: RunRecord) -> Outcome:
        kl = run.updates.column("exact_kl")
        return judged(kl > self.MOST, f"largest exact KL {kl.max():.3g}", where(run, "exact_kl", kl > self.MOST))


@check
class KLEstimates(Check):
    """R4: a negative exact KL, or estimators that disagree beyond their noise, is a wrong ratio."""

    id = "R4"
    title = "KL is negative, or its estimators disagree"
    severity = "high"
    question = "Is the exact KL at least 0, and do its estimates k1 and k3 agree?"
    needs = ("updates.exact_kl", "updates.kl_k1", "updates.approx_kl", "updates.stopped_early")
    minimum = 10
    ROUNDING, FACTOR, ERRORS = 1e-6, 2.0, 4.0
    threshold = (
        f"exact KL < -{number(ROUNDING)}; or mean k1 and k3 differ by more than a factor {FACTOR:g} and by more than "
        f"{ERRORS:g} standard errors"
    )
    source = "TRL (negative KL precedes failure); Schulman, Approximating KL divergence; noise rule " + OURS
    fix = "Check that log-probabilities are summed over exactly the relevant heads, when acting and when replaying."
    passes_when = "exact KL is never negative and both estimates agree within noise"

    def examine(self, run: RunRecord) -> Outcome:
        exact, k1, k3 = (run.updates.column(name) for name in ("exact_kl", "kl_k1", "approx_kl"))
        negative = exact < -self.ROUNDING
        if negative.any():
            return found(f"smallest exact KL {exact.min():.3g}", None, where(run, "exact_kl", negative))
        # A stop chooses the minibatch whose k3 is large: there the two differ without a fault.
        free = run.updates.column("stopped_early") == 0
        if free.sum() < self.minimum:
            return undecided(f"exact KL is never negative; {free.sum()} updates ended without a stop")
        k1, k3 = k1[free], k3[free]
        difference = k1 - k3
        error = difference.std(ddof=1) / np.sqrt(len(difference))
        low, high = sorted((float(k1.mean()), float(k3.mean())))
        beyond_noise = abs(difference.mean()) > self.ERRORS * error and high > self.ROUNDING
        apart = high > self.FACTOR * max(low, 0.0) and beyond_noise
        return judged(apart, f"mean k1 {k1.mean():.3g}, mean k3 {k3.mean():.3g}")


@check
class EarlyStops(Check):
    """R5: most updates ending in their first epoch waste the rollout."""

    id = "R5"
    title = "Most updates stop in their first epoch"
    severity = "medium"
    question = "Do updates get beyond their first epoch?"
    needs = ("updates.stopped_early", "updates.epochs")
    minimum = PERSISTENT
    SHARE = 0.5
    threshold = f"more than {percent(SHARE)} of updates stop in their first epoch"
    source = "Spinning Up (early stop); Dossa et al. 2021; share " + OURS
    fix = "Lower ppo.learning_rate or use fewer minibatches."
    passes_when = f"at most {percent(SHARE)} of updates stop in their first epoch"

    def examine(self, run: RunRecord) -> Outcome:
        first = (run.updates.column("stopped_early") > 0) & (run.updates.column("epochs") <= 1)
        return judged(first.mean() > self.SHARE, f"{100 * first.mean():.0f} % of updates")


@check
class ClipFraction(Check):
    """R6: much clipping with a large KL wastes data; none with all epochs run means timid steps."""

    id = "R6"
    title = "Clip fraction is out of its healthy range"
    severity = "high"
    question = "Is a moderate share of ratios clipped?"
    needs = ("updates.clip_fraction", "updates.approx_kl")
    minimum = PERSISTENT
    MUCH, LARGE_KL, NONE = 0.3, 0.05, 1e-3
    threshold = f"> {MUCH:g} with KL > {LARGE_KL:g} for {PERSISTENT} updates: high; < {NONE:g} in every update: low"
    source = "community run-book (0.05-0.20 healthy), " + OURS
    fix = "Too much: lower ppo.learning_rate. None at all: raise it, or ppo.epochs."
    passes_when = f"some ratios are clipped, and never more than {percent(MUCH)} with a large KL"

    def examine(self, run: RunRecord) -> Outcome:
        clipped, kl = run.updates.column("clip_fraction"), run.updates.column("approx_kl")
        measured = f"median {np.median(clipped):.3f}, largest {clipped.max():.3f}"
        bad = (clipped > self.MUCH) & (kl > self.LARGE_KL)
        if longest_run(bad) >= PERSISTENT:
            return found(measured, "high", where(run, "clip_fraction", bad))
        return found(measured, "low") if clipped.max() < self.NONE else passed(measured)


@check
class SecondMoment(Check):
    """R7: a jump of Adam's second moment announces unstable training."""

    id = "R7"
    title = "Adam's second moment jumps"
    severity = "medium"
    question = "Does the largest second moment grow smoothly?"
    needs = ("updates.max_second_moment",)
    minimum = PERSISTENT
    FACTOR = 10.0
    threshold = f"more than {FACTOR:g} x its moving average (decay {EMA_DECAY:g})"
    source = "Sample Factory adam_max_second_moment; factor " + OURS
    fix = "Look at the rollout of that iteration for outlying rewards or advantages; lower ppo.max_grad_norm."
    passes_when = f"it never exceeds {FACTOR:g} x its average so far"

    def examine(self, run: RunRecord) -> Outcome:
        moment = run.updates.column("max_second_moment")
        ratio = (moment / np.maximum(ema_before(moment), 1e-30))[1:]
        bad = np.concatenate(([False], ratio > self.FACTOR))
        return judged(bad, f"largest jump {ratio.max():.2f} x its average", where(run, "max_second_moment", bad))


@check
class LogProbabilities(Check):
    """R8: log-probabilities in the hundreds are distributions that fluctuate wildly."""

    id = "R8"
    title = "Log-probability of a taken action is huge"
    severity = "medium"
    question = "Are the actions taken still plausible under the policy being updated?"
    needs = ("updates.max_abs_log_prob",)
    LIMIT = 100.0
    threshold = f"|log-probability| > {LIMIT:g}"
    source = "Sample Factory metrics reference (hundreds or thousands = fluctuating distributions)"
    fix = "Lower ppo.learning_rate; raise ppo.entropy_coef_final."
    passes_when = f"every |log-probability| stays within {LIMIT:g}"

    def examine(self, run: RunRecord) -> Outcome:
        values = run.updates.column("max_abs_log_prob")
        bad = values > self.LIMIT
        return judged(bad, f"largest {values.max():.3g}", where(run, "max_abs_log_prob", bad))
