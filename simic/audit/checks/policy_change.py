"""How far an update moved the policy: replay, ratios, divergence, clipping, Adam."""

import numpy as np

from simic.agent.ppo import EARLY_STOP, RATIO_TOLERANCE
from simic.audit import limits
from simic.audit.checks.base import Check, Outcome, Reading, check, undecided, weighed
from simic.audit.checks.shared import (
    EMA_DECAY,
    MEDIAN_ERROR,
    NOISE,
    OURS,
    PERSISTENT,
    Values,
    ema_before,
    errors_of_mean,
    sustained,
    where,
    windows,
)
from simic.audit.findings import number, percent
from simic.audit.limits import Limit
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
    complete = False
    threshold = f"|ratio - 1| above the trainer's own tolerance, {number(RATIO_TOLERANCE)}"
    source = "Huang et al. 2022, 37 implementation details of PPO: the ratio must be 1"
    fix = "Replay with the normalised observations, masks and initial hidden state used when acting."
    passes_when = "the largest deviation of every update of PPO is within the tolerance"

    def examine(self, run: RunRecord) -> Outcome:
        deviation = run.updates.column("first_ratio_deviation")
        evidence = where(run, "first_ratio_deviation", ~(deviation <= RATIO_TOLERANCE))  # NaN is bad
        limit = Limit("largest |ratio - 1|", RATIO_TOLERANCE, ours=False)
        return weighed([Reading(limit, float(np.max(deviation)), None, evidence)]).of(len(deviation))


@check
class RatioExplosion(Check):
    """R2: single ratios far from 1 make the clipped objective meaningless."""

    id = "R2"
    title = "Importance ratios explode"
    severity = "high"
    question = "Do importance ratios stay near the clip range?"
    needs = ("updates.ratio_mean", "updates.ratio_min", "updates.ratio_max")
    MEAN, LOWEST, HIGHEST = limits.LARGEST_MEAN_RATIO, limits.SMALLEST_RATIO, limits.LARGEST_RATIO
    threshold = f"mean ratio of an update > {MEAN:g}: high; any ratio > {HIGHEST:g} or < {LOWEST:g}: medium"
    source = "mean: TRL ratio_threshold 10; single ratios " + OURS
    fix = "Lower ppo.learning_rate or ppo.epochs; check R1 first."
    passes_when = f"mean ratios stay below {MEAN:g} and every ratio within [{LOWEST:g}, {HIGHEST:g}]"

    def examine(self, run: RunRecord) -> Outcome:
        low, high, mean = (run.updates.column(f"ratio_{name}") for name in ("min", "max", "mean"))
        return weighed(
            [
                Reading(self.MEAN, mean.max(), "high", where(run, "ratio_mean", mean > self.MEAN)),
                Reading(self.HIGHEST, high.max(), "medium", where(run, "ratio_max", high > self.HIGHEST)),
                Reading(self.LOWEST, low.min(), "medium", where(run, "ratio_min", low < self.LOWEST)),
            ]
        )


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
    CRITICAL, HIGH, USUAL, NONE = limits.CRITICAL_KL, limits.HIGH_KL, limits.SUSTAINED_KL, limits.LARGEST_KL
    threshold = (
        f"median of {PERSISTENT} consecutive updates less {NOISE:g} standard errors > {CRITICAL:g}: critical; > "
        f"{HIGH:g}: high; > max({USUAL:g}, {EARLY_STOP:g} x target_kl): medium; all < {number(NONE)}: medium"
    )
    source = "Huang et al. 2022 (below 0.02); Spinning Up (target 0.01-0.05, stop at 1.5x); window ours"
    fix = (
        "Lower ppo.learning_rate, ppo.epochs, or set ppo.target_kl; at zero, check gradients (G1) and advantages (A2)."
    )
    passes_when = "the running median stays within the lowest limit, and some update moves the policy"

    def examine(self, run: RunRecord) -> Outcome:
        kl = run.updates.column("exact_kl")
        stretches = windows(kl, PERSISTENT)
        noise = NOISE * MEDIAN_ERROR * errors_of_mean(stretches)
        kept_up = float((np.median(stretches, axis=1) - noise).max())
        target = run.params.train.ppo.target_kl or 0.0
        usual = Limit(self.USUAL.name, max(self.USUAL, EARLY_STOP * target), ours=False)

        def above(limit: Limit, severity: Severity) -> Reading:
            return Reading(limit, kept_up, severity, where(run, "exact_kl", kl > limit))

        still = Reading(self.NONE, float(np.abs(kl).max()), "medium")
        return weighed(
            [above(self.CRITICAL, "critical"), above(self.HIGH, "high"), above(usual, "medium"), still],
        )


@check
class Spike(Check):
    """R9: one update that moved the policy far can undo what many had learned."""

    id = "R9"
    title = "One update moved the policy far"
    severity = "high"
    question = "Is the exact KL of every single update moderate?"
    needs = ("updates.exact_kl",)
    MOST = limits.KL_OF_ONE_UPDATE
    threshold = f"exact KL of any update > {MOST:g}"
    source = "Schulman, Nuts and Bolts (0.01 is small, 10 far too much); number " + OURS
    fix = "Look at the rewards and gradients of that iteration; set ppo.target_kl or lower ppo.learning_rate."
    passes_when = f"no update exceeds {MOST:g}"

    def examine(self, run: RunRecord) -> Outcome:
        kl = run.updates.column("exact_kl")
        return weighed([Reading(self.MOST, kl.max(), None, where(run, "exact_kl", kl > self.MOST))])


@check
class KLEstimates(Check):
    """R4: a negative exact KL, or estimators that disagree beyond their noise, is a wrong ratio."""

    id = "R4"
    title = "KL is negative, or its estimators disagree"
    severity = "high"
    question = "Is the exact KL at least 0, and do its estimates k1 and k3 agree?"
    needs = ("updates.exact_kl", "updates.kl_k1", "updates.approx_kl", "updates.stopped_early")
    minimum = PERSISTENT
    LEAST, APART, ERRORS = limits.SMALLEST_KL, limits.KL_ESTIMATES_APART, 4.0
    threshold = (
        f"exact KL < {number(LEAST)}; or mean k1 and k3 differ by more than a factor {APART:g} and by more than "
        f"{ERRORS:g} standard errors"
    )
    source = "TRL (negative KL precedes failure); Schulman, Approximating KL divergence; noise rule ours"
    fix = "Check that log-probabilities are summed over exactly the relevant heads, when acting and when replaying."
    passes_when = "exact KL is never negative and both estimates agree within noise"

    def examine(self, run: RunRecord) -> Outcome:
        exact, k1, k3 = (run.updates.column(name) for name in ("exact_kl", "kl_k1", "approx_kl"))
        evidence = where(run, "exact_kl", exact < self.LEAST)
        negative = Reading(self.LEAST, exact.min(), None, evidence)
        # A stop chooses the minibatch whose k3 is large: there the two differ without a fault.
        free = run.updates.column("stopped_early") == 0
        if negative.broken or free.sum() < self.minimum:
            outcome = weighed([negative])
            few = f"exact KL is never negative; {free.sum()} updates of PPO ended without a stop"
            return outcome if negative.broken else undecided(few).showing(negative.statistic)
        return weighed([negative, Reading(self.APART, self._factor(k1[free], k3[free]))])

    def _factor(self, k1: Values, k3: Values) -> float:
        """Between their means; 1 where noise or rounding explains what they differ by."""
        difference = k1 - k3
        error = difference.std(ddof=1) / np.sqrt(len(difference))
        low, high = sorted((float(k1.mean()), float(k3.mean())))
        noise = abs(difference.mean()) <= self.ERRORS * error or high <= -self.LEAST
        return 1.0 if noise else high / max(low, 1e-12)


@check
class EarlyStops(Check):
    """R5: most updates ending in their first epoch waste the rollout."""

    id = "R5"
    title = "Most updates stop in their first epoch"
    severity = "medium"
    beyond_default = "the default run has no ppo.target_kl"
    question = "Do updates get beyond their first epoch?"
    needs = ("updates.stopped_early", "updates.epochs")
    minimum = PERSISTENT
    counted = "update of PPO with a target_kl"
    SHARE = limits.STOPPED_AT_ONCE
    threshold = f"> {percent(SHARE)} of updates stop in their first epoch"
    source = "Spinning Up; share " + OURS
    fix = "Lower ppo.learning_rate or use fewer minibatches."
    passes_when = f"at most {percent(SHARE)} of updates stop in their first epoch"

    def examine(self, run: RunRecord) -> Outcome:
        first = (run.updates.column("stopped_early") > 0) & (run.updates.column("epochs") <= 1)
        stops = run.params.train.ppo.target_kl is not None
        return weighed([Reading(self.SHARE, first.mean())]).of(len(first) if stops else 0)


@check
class ClipFraction(Check):
    """R6: much clipping with a large KL wastes data; none with all epochs run means timid steps."""

    id = "R6"
    title = "Clip fraction is out of its healthy range"
    severity = "high"
    question = "Is a moderate share of ratios clipped?"
    needs = ("updates.clip_fraction", "updates.approx_kl")
    minimum = PERSISTENT
    MUCH, NONE, LARGE_KL = limits.CLIPPED_WITH_LARGE_KL, limits.CLIPPED_AT_ALL, limits.HIGH_KL
    threshold = f"> {MUCH:g} with KL > {LARGE_KL:g} for {PERSISTENT} updates: high; < {NONE:g} in every update: low"
    source = "community run-book (0.05-0.20 healthy); numbers " + OURS
    fix = "Too much: lower ppo.learning_rate. None at all: raise it, or ppo.epochs."
    passes_when = f"some ratios are clipped, and never more than {percent(MUCH)} with a large KL"

    def examine(self, run: RunRecord) -> Outcome:
        clipped, kl = run.updates.column("clip_fraction"), run.updates.column("approx_kl")
        far = np.where(kl > self.LARGE_KL, clipped, 0.0)
        evidence = where(run, "clip_fraction", far > self.MUCH)
        much = Reading(self.MUCH, sustained(far, PERSISTENT), "high", evidence)
        return weighed([much, Reading(self.NONE, clipped.max(), "low")])


@check
class SecondMoment(Check):
    """R7: a jump of Adam's second moment announces unstable training."""

    id = "R7"
    title = "Adam's second moment jumps"
    severity = "medium"
    question = "Does the largest second moment grow smoothly?"
    needs = ("updates.max_second_moment", "updates.steps")
    minimum = PERSISTENT
    FACTOR, DECAY = limits.JUMP_OF_SECOND_MOMENT, 0.999
    threshold = (
        f"more than {FACTOR:g} x its moving average (decay {EMA_DECAY:g}), both without the bias of their first steps "
        f"(Adam's decay {DECAY:g})"
    )
    source = "Sample Factory adam_max_second_moment; bias: Kingma and Ba 2015 (arXiv 1412.6980); factor " + OURS
    fix = "Look at the rollout of that iteration for outlying rewards or advantages; lower ppo.max_grad_norm."
    passes_when = f"it never exceeds {FACTOR:g} x its average so far"

    def examine(self, run: RunRecord) -> Outcome:
        taken, recorded = run.updates.column("steps"), run.updates.column("max_second_moment")
        # Moments start at 0 and are told as they are: an update of many steps raises them, whatever the gradients. Of
        # a run whose first updates are not here they have no such bias any more.
        whole = run.updates.column("iteration")[0] == 0
        moment = recorded / (1 - self.DECAY ** np.maximum(np.cumsum(taken), 1)) if whole else recorded
        jump = np.concatenate(([0.0], (moment / np.maximum(ema_before(moment), 1e-30))[1:]))
        evidence = where(run, "max_second_moment", jump > self.FACTOR)
        return weighed([Reading(self.FACTOR, jump.max(), None, evidence)])


@check
class LogProbabilities(Check):
    """R8: log-probabilities in the hundreds are distributions that fluctuate wildly."""

    id = "R8"
    title = "Log-probability of a taken action is huge"
    severity = "medium"
    question = "Are the actions taken still plausible under the policy being updated?"
    needs = ("updates.max_abs_log_prob",)
    MOST = limits.LARGEST_LOG_PROBABILITY
    threshold = f"|log-probability| > {MOST:g}"
    source = "Sample Factory metrics reference (hundreds or thousands = fluctuating distributions)"
    fix = "Lower ppo.learning_rate; raise ppo.entropy_coef_final."
    passes_when = f"every |log-probability| stays within {MOST:g}"

    def examine(self, run: RunRecord) -> Outcome:
        values = run.updates.column("max_abs_log_prob")
        return weighed([Reading(self.MOST, values.max(), None, where(run, "max_abs_log_prob", values > self.MOST))])
