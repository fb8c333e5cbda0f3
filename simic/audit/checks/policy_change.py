"""Change of the policy in an update: replay, importance ratios, divergence."""

import numpy as np

from simic.agent.ppo import EARLY_STOP, RATIO_TOLERANCE
from simic.audit import limits
from simic.audit.checks.base import (
    NOISE,
    OURS,
    PERSISTENT,
    Check,
    Outcome,
    Reading,
    Values,
    check,
    weighed,
    where,
    windows,
)
from simic.audit.findings import number
from simic.audit.limits import Limit
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity

MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, of a normal distribution: sqrt(pi / 2)


@check
class FirstRatio(Check):
    """Check R1: the update reproduces the log-probabilities that were stored when acting."""

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
    """Check R2: importance ratios stay near 1."""

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
    """Check R3: sustained KL means steps too large for the trust region; none at all means no learning."""

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
    fix = "Lower ppo.learning_rate, ppo.epochs, or set ppo.target_kl; at zero, check gradients (G1) and advantages."
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
        return weighed([above(self.CRITICAL, "critical"), above(self.HIGH, "high"), above(usual, "medium"), still])


@check
class Spike(Check):
    """Check R9: no single update moves the policy far."""

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


def errors_of_mean(stretches: Values) -> Values:
    """Return the standard error of the mean of each stretch."""
    count = stretches.shape[1]
    return stretches.std(axis=1, ddof=1) / np.sqrt(count) if count > 1 else 0.0 * stretches[:, 0]
