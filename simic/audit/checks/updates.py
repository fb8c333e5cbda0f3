"""Symptoms of bad learning in the updates: exploration, change of the policy, critic, gradients, memory."""

from collections.abc import Mapping

import numpy as np
from scipy import stats

from simic.agent.metrics import SATURATED
from simic.agent.ppo import ADVANTAGE_SIGMA_FLOOR, EARLY_STOP, RATIO_TOLERANCE
from simic.audit import limits
from simic.audit.checks.base import (
    OURS,
    Outcome,
    Reading,
    Values,
    check,
    undecided,
    weighed,
    where,
    windows,
)
from simic.audit.findings import number, percent
from simic.audit.limits import Limit
from simic.audit.record import RunRecord
from simic.evaluation.statistics import CONFIDENCE
from simic.telemetry.rows import Severity


def _worst_head(limit: Limit, severity: Severity, values: Mapping[str, float]) -> list[Reading]:
    """Return the worst head with all broken ones as evidence; an empty list without heads."""
    if not values:
        return []
    worst = (max if limit.above else min)(values.values())
    beyond = [{"head": name, limit.name: value} for name, value in sorted(values.items()) if limit.broken_by(value)]
    return [Reading(limit, worst, severity, beyond)]


# Settings of several checks; all ours.
ENOUGH_ROWS = 32  # what is measured of a head on fewer rows is noise
PERSISTENT = 5  # consecutive updates: as many as the default run has without its first
NOISE = 2.0  # standard errors

# --- exploration -----------------------------------------------------------------------------------------------------

WINDOW = 5  # updates
EARLY, LATE = 0.5, 0.25  # of the run, at its beginning and its end


def _entropies(run: RunRecord) -> dict[str, Values]:
    """Return normalised entropy by head, NaN in updates where too few rows had a choice; without unmeasured heads."""
    samples = run.updates.below("samples_by_head")
    heads = {
        name: np.where(samples[name] >= ENOUGH_ROWS, values, np.nan)
        for name, values in run.updates.below("entropy_by_head").items()
        if name in samples
    }
    return {name: values for name, values in heads.items() if np.isfinite(values).any()}


@check(
    id="E1",
    title="Entropy of a head collapses, oscillates or stays at its maximum",
    severity="high",
    question="Does the entropy of every head fall steadily without reaching zero too soon?",
    needs=("updates.entropy_by_head", "updates.samples_by_head"),
    minimum=WINDOW,
    threshold=(
        f"< {limits.LEAST_ENTROPY:g} in the first {percent(EARLY)} of the updates: high; oscillates by > "
        f"{limits.SWING_OF_ENTROPY:g} around its running mean: medium; nearer than {limits.FROM_UNIFORM:g} to its "
        f"maximum in all of the last {percent(LATE)}: medium for the op, low for other heads"
    ),
    source="Andy Jones 2021 (near 0 collapsed, oscillation = learning rate too high); numbers " + OURS,
    fix="Collapsed: raise ppo.entropy_coef. Oscillating: lower ppo.learning_rate. Uniform: train longer.",
)
def _entropy(run: RunRecord) -> Outcome:
    heads, train = _entropies(run), run.params.train
    if not heads:
        return undecided(f"no head had a choice in {ENOUGH_ROWS} rows of any update")
    progress = run.updates.column("iteration") / max(1, train.iterations)
    early, late = progress < EARLY, progress >= 1 - LATE
    least = {name: float(np.nanmin(v[early])) for name, v in heads.items() if np.isfinite(v[early]).any()}
    swing = {name: _swing(values) for name, values in heads.items()}
    away = {n: float((1 - v[late]).max()) for n, v in heads.items() if late.any() and np.isfinite(v[late]).all()}
    of_op = "op" in away and limits.FROM_UNIFORM.broken_by(away["op"])
    collapsed = _worst_head(limits.LEAST_ENTROPY, "high", least)
    oscillates = _worst_head(limits.SWING_OF_ENTROPY, "medium", swing)
    return weighed(collapsed + oscillates + _worst_head(limits.FROM_UNIFORM, "medium" if of_op else "low", away))


def _swing(values: Values) -> float:
    """Return peak to peak around the running mean; 0 for fewer updates than two windows, or with gaps."""
    if len(values) < 2 * WINDOW or not np.isfinite(values).all():
        return 0.0
    residual = values[WINDOW // 2 : -(WINDOW // 2)] - np.convolve(values, np.full(WINDOW, 1 / WINDOW), mode="valid")
    return float(np.ptp(residual))


# --- change of the policy in an update -------------------------------------------------------------------------------


@check(
    id="R1",
    title="The update does not reproduce the log-probabilities of acting",
    severity="critical",
    question="Is the ratio of the first minibatch 1 before any optimiser step?",
    needs=("updates.first_ratio_deviation", "params"),
    complete=False,
    threshold=f"|ratio - 1| above the trainer's own tolerance, {number(RATIO_TOLERANCE)}",
    source="Huang et al. 2022, 37 implementation details of PPO: the ratio must be 1",
    fix="Replay with the normalised observations, masks and initial hidden state used when acting.",
)
def _first_ratio(run: RunRecord) -> Outcome:
    deviation = run.updates.column("first_ratio_deviation")
    evidence = where(run, "first_ratio_deviation", ~(deviation <= RATIO_TOLERANCE))  # NaN is bad
    limit = Limit("largest |ratio - 1|", RATIO_TOLERANCE, ours=False)
    return weighed([Reading(limit, float(np.max(deviation)), None, evidence)])


@check(
    id="R2",
    title="Importance ratios explode",
    severity="high",
    question="Do importance ratios stay near the clip range?",
    needs=("updates.ratio_mean", "updates.ratio_min", "updates.ratio_max"),
    threshold=(
        f"mean ratio of an update > {limits.LARGEST_MEAN_RATIO:g}: high; any ratio > {limits.LARGEST_RATIO:g} or < "
        f"{limits.SMALLEST_RATIO:g}: medium"
    ),
    source="mean: TRL ratio_threshold 10; single ratios " + OURS,
    fix="Lower ppo.learning_rate or ppo.epochs; check R1 first.",
)
def _ratios(run: RunRecord) -> Outcome:
    def furthest(limit: Limit, name: str, severity: Severity) -> Reading:
        values = run.updates.column(name)
        bad = values > limit if limit.above else values < limit
        return Reading(limit, values.max() if limit.above else values.min(), severity, where(run, name, bad))

    return weighed(
        [
            furthest(limits.LARGEST_MEAN_RATIO, "ratio_mean", "high"),
            furthest(limits.LARGEST_RATIO, "ratio_max", "medium"),
            furthest(limits.SMALLEST_RATIO, "ratio_min", "medium"),
        ]
    )


MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, of a normal distribution: sqrt(pi / 2)


@check(
    id="R3",
    title="Updates move the policy too far, or not at all",
    severity="critical",
    question="Is the KL divergence of updates, and of every single one, small, but not zero?",
    # Of the whole update: an estimate at its last minibatch measures the rule that stops there.
    needs=("updates.update_kl",),
    minimum=PERSISTENT,
    threshold=(
        f"median of {PERSISTENT} consecutive updates less {NOISE:g} standard errors > {limits.CRITICAL_KL:g}: "
        f"critical; > {limits.HIGH_KL:g}: high; > max({limits.SUSTAINED_KL:g}, {EARLY_STOP:g} x target_kl): medium; "
        f"any update > {limits.KL_OF_ONE_UPDATE:g}: high; all < {number(limits.LARGEST_KL)}: medium"
    ),
    source="Huang et al. 2022 (below 0.02); Spinning Up (target 0.01-0.05, stop at 1.5x); window, one update " + OURS,
    fix="Lower ppo.learning_rate, ppo.epochs, or set ppo.target_kl; at zero, check gradients (G1) and advantages.",
)
def _divergence(run: RunRecord) -> Outcome:
    kl = run.updates.column("update_kl")
    stretches = windows(kl, PERSISTENT)
    noise = NOISE * MEDIAN_ERROR * stretches.std(axis=1, ddof=1) / np.sqrt(PERSISTENT)
    kept_up = float((np.median(stretches, axis=1) - noise).max())
    target = run.params.train.ppo.target_kl or 0.0
    usual = Limit(limits.SUSTAINED_KL.name, max(limits.SUSTAINED_KL, EARLY_STOP * target), ours=False)

    def above(limit: Limit, severity: Severity, value: float = kept_up) -> Reading:
        return Reading(limit, value, severity, where(run, "update_kl", kl > limit))

    return weighed(
        [
            above(limits.CRITICAL_KL, "critical"),
            above(limits.HIGH_KL, "high"),
            above(limits.KL_OF_ONE_UPDATE, "high", kl.max()),
            above(usual, "medium"),
            Reading(limits.LARGEST_KL, float(np.abs(kl).max()), "medium"),
        ]
    )


# --- critic ----------------------------------------------------------------------------------------------------------

LASTING = 10  # updates whose returns the critic explains or not
SECOND_HALF = 0.5  # of the run
FIRST_UPDATES = 5  # too soon to be perfect


def _explained_together(explained: Values, variance: Values) -> Values:
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


@check(
    id="V1",
    title="The critic does not explain the returns",
    severity="medium",
    question="Is the critic better than a constant?",
    needs=("updates.explained_variance", "updates.return_std"),
    minimum=PERSISTENT,
    threshold=(
        f"of updates whose returns deviate by {ADVANTAGE_SIGMA_FLOOR:g} or more, taken together, the upper end of the "
        f"{percent(CONFIDENCE)} interval: of {LASTING} (of all where there are fewer) < {limits.EXPLAINED_VARIANCE:g}; "
        f"of the last {percent(SECOND_HALF)}, if {LASTING}, < {limits.LATE_EXPLAINED_VARIANCE:g}: medium; unexplained "
        f"< {limits.UNEXPLAINED_EARLY:g} within the first {FIRST_UPDATES}: low"
    ),
    source="Stable-Baselines3 logger (0 = a constant, < 0 worse); other numbers " + OURS,
    fix="Check the scale of returns and the gradients (G1); raise ppo.value_coef.",
)
def _explained_variance(run: RunRecord) -> Outcome:
    # Where returns hardly differ there is nothing to explain: the share of next to nothing is any number.
    differ = run.updates.column("return_std") >= ADVANTAGE_SIGMA_FLOOR
    if differ.sum() < PERSISTENT:
        return undecided(f"returns differ in {differ.sum()} updates, {PERSISTENT} are needed")
    updates = run.updates.where(differ)
    explained, iteration = updates.column("explained_variance"), updates.column("iteration")
    variance = updates.column("return_std") ** 2
    together = _explained_together(windows(explained, LASTING), windows(variance, LASTING))
    bad = where(run, "explained_variance", differ & (run.updates.column("explained_variance") < 0))
    readings = [Reading(limits.EXPLAINED_VARIANCE, together.min(), "medium", bad)]
    late = iteration >= (1 - SECOND_HALF) * run.params.train.iterations
    if late.sum() >= LASTING:
        later = _explained_together(explained[None, late], variance[None, late])[0]
        readings.append(Reading(limits.LATE_EXPLAINED_VARIANCE, later, "medium"))
    first = explained[iteration < FIRST_UPDATES]
    readings += [Reading(limits.UNEXPLAINED_EARLY, 1 - first.max(), "low")] if first.size else []
    return weighed(readings)


# --- gradients and memory --------------------------------------------------------------------------------------------

LARGE = 10.0  # times the clipping norm
SETTLED = 3  # updates: values start out wrong


@check(
    id="G1",
    title="Gradients are not finite, or far above the clipping norm",
    severity="critical",
    question="Are gradients finite, and mostly of the order of the clipping norm?",
    needs=("updates.grad_norm_max", "updates.grad_clipped_fraction", "updates.skipped_steps"),
    minimum=SETTLED,
    threshold=(
        f"more than {limits.SKIPPED_STEPS:g} steps skipped as not finite: critical; after {SETTLED} updates > "
        f"{LARGE:g} x the clipping norm in > {percent(limits.LARGE_GRADIENTS)} of updates: medium; < "
        f"{percent(limits.UNCLIPPED_STEPS)} of steps not clipped: low"
    ),
    source="clip 0.5: CleanRL and Huang et al. 2022; ratios " + OURS,
    fix="Not finite: see the gradient norms by layer and the rewards of that iteration. Large: check value targets.",
    post_hoc=True,  # while it runs, the trainer skips such steps up to a budget and then stops by itself
)
def _gradient_norm(run: RunRecord) -> Outcome:
    table, clip = run.updates, run.params.train.ppo.max_grad_norm
    norm, skipped = table.column("grad_norm_max"), table.column("skipped_steps")
    readings = [Reading(limits.SKIPPED_STEPS, skipped.sum(), None, where(run, "skipped_steps", skipped > 0))]
    settled = table.column("iteration") >= SETTLED
    if settled.any():
        large = (norm > LARGE * clip) & settled
        free = 1 - table.column("grad_clipped_fraction")[settled]
        evidence = where(run, "grad_norm_max", large)
        readings += [Reading(limits.LARGE_GRADIENTS, large[settled].mean(), "medium", evidence)]
        readings += [Reading(limits.UNCLIPPED_STEPS, free.mean(), "low")]
    return weighed(readings)


@check(
    id="G2",
    title="A head is starved of gradient",
    severity="high",
    question="Does every head that had choices to make get its share of the gradient?",
    needs=("updates.grad_norm_by_part", "updates.samples_by_head"),
    minimum=PERSISTENT,
    threshold=(
        f"< {percent(limits.SHARE_OF_HEAD)} of the summed gradient norms of all heads in {PERSISTENT} consecutive "
        f"updates, despite at least {ENOUGH_ROWS} rows with a choice: high; with {ENOUGH_ROWS} hosts or more, < "
        f"{limits.ROWS_OF_HEAD:g} such rows in {PERSISTENT} consecutive updates: low"
    ),
    # Few rows are no defect by themselves: a policy that has settled asks the heads of other ops rarely.
    source=(
        f"share {OURS}; fewer rows than hosts: a head is used once an episode or more, so with fewer hosts any is rare"
    ),
    fix="Use ppo.ratio: per_head, raise ppo.entropy_coef, or collect more rows (train.envs) per update.",
)
def _head_gradients(run: RunRecord) -> Outcome:
    parts, prefix = run.updates.below("grad_norm_by_part"), "head_"
    norms = {name.removeprefix(prefix): values for name, values in parts.items() if name.startswith(prefix)}
    samples, train = run.updates.below("samples_by_head"), run.params.train
    total = np.nansum(list(norms.values()), axis=0)
    decided = {name for name, values in train.actions.items() if len(set(values)) == 1}
    stage = run.steps.columns.get("stage")
    if stage is not None and stage.shape[-1] == 1:
        decided.add("slot")  # there is but one
    shares, rows = dict[str, float](), dict[str, float]()
    for name in sorted(norms.keys() & samples.keys() - decided):
        enough = samples[name] >= ENOUGH_ROWS
        share = np.divide(norms[name], total, out=np.zeros_like(total), where=total > 0)
        shares[name] = _kept_down(np.where(enough, share, np.inf))
        if train.envs >= ENOUGH_ROWS:
            rows[name] = _kept_down(samples[name])
    shares = {name: share for name, share in shares.items() if np.isfinite(share)}
    readings = _worst_head(limits.SHARE_OF_HEAD, "high", shares) + _worst_head(limits.ROWS_OF_HEAD, "low", rows)
    few = f"no head had {ENOUGH_ROWS} rows with a choice in {PERSISTENT} consecutive updates"
    return weighed(readings) if readings else undecided(few)


def _kept_down(values: Values) -> float:
    """Return the lowest level that PERSISTENT consecutive values stay below."""
    return float(windows(values, PERSISTENT).max(axis=1).min())


GROWTH, UNITS = 10.0, 0.9  # of the hidden state over an episode; share of saturated units


@check(
    id="H1",
    title="The recurrent state saturates or grows",
    severity="high",
    question="Does the hidden state stay in its working range over an episode?",
    needs=("updates.hidden_growth", "updates.hidden_saturated"),
    minimum=SETTLED,
    complete=False,
    threshold=(
        f"grows > {GROWTH:g} x from the first to the last step, or > {percent(UNITS)} of units beyond ±{SATURATED:g}, "
        f"in > {percent(limits.BAD_MEMORY)} of updates"
    ),
    source=OURS,
    fix="Lower ppo.learning_rate; check observations for unbounded features.",
)
def _memory(run: RunRecord) -> Outcome:
    growth, saturated = run.updates.column("hidden_growth"), run.updates.column("hidden_saturated")
    # A fresh core starts from zero state, so its first output is small; NaN counts as bad.
    bad = ~(growth <= GROWTH) | ~(saturated <= UNITS)
    return weighed([Reading(limits.BAD_MEMORY, bad.mean(), None, where(run, "hidden_growth", bad))])
