"""Signs of bad learning: exploration, change of the policy, critic, gradients, memory, rewards.

A sign alone is no finding: the returns must be bad too.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
from scipy import stats

from simic.agent.metrics import SATURATED
from simic.agent.ppo import ADVANTAGE_SIGMA_FLOOR, EARLY_STOP, RATIO_TOLERANCE
from simic.audit import limits
from simic.audit.checks.base import (
    Outcome,
    Reading,
    Values,
    check,
    failed,
    passed,
    rows_of_iterations,
    undecided,
    weighed,
    worst_updates,
)
from simic.audit.findings import Evidence, number, percent
from simic.audit.limits import OURS, Limit
from simic.audit.record import RunRecord
from simic.evaluation.intervals import CONFIDENCE
from simic.growth.life.vocabulary import Op
from simic.telemetry.columns import Array
from simic.telemetry.rows import SEVERITIES, Severity

ENOUGH_ROWS = 32  # of a head in an update: what is measured on fewer is noise
PERSISTENT = 5  # consecutive updates
NOISE = 2.0  # standard errors

sign = partial(check, layer="learning", sign=True)


def _worst_head(limit: Limit, severity: Severity, values: Mapping[str, float]) -> list[Reading]:
    """Compare the worst head with a limit, with all broken ones as evidence; nothing without heads."""
    if not values:
        return []
    # One reading for all heads: a report of one line for each would repeat the same cause.
    worst = (max if limit.above else min)(values.values())
    evidence: list[Evidence] = [
        {"head": name, limit.name: value}
        for name, value in sorted(values.items())
        if limit.broken_by(value)
    ]
    return [Reading(limit, worst, severity, evidence)]


def _windows(values: Values, width: int) -> Values:
    """List all stretches of ``width`` consecutive values ``[n - width + 1, width]``; of fewer values one stretch."""
    return np.lib.stride_tricks.sliding_window_view(values, min(width, len(values)))


# --- exploration -----------------------------------------------------------------------------------------------------

WINDOW = 5  # updates
EARLY, LATE = 0.5, 0.25  # of the run, at its beginning and its end


@sign(
    id="E1",
    title="Entropy of a head collapses, oscillates or stays at its maximum",
    severity="high",
    question="Does the entropy of every head fall steadily without reaching zero too soon?",
    needs=("updates.entropy_by_head", "updates.samples_by_head"),
    minimum=WINDOW,
    threshold=(
        f"< {limits.LEAST_ENTROPY} in the first {percent(EARLY)} of the updates: high; oscillates by > "
        f"{limits.SWING_OF_ENTROPY} around its running mean: medium; nearer than {limits.FROM_UNIFORM} to its "
        f"maximum in all of the last {percent(LATE)}: medium for the op, low for other heads"
    ),
    source=f"Andy Jones 2021 (near 0 collapsed, oscillation = learning rate too high); numbers {OURS}",
    fix="Collapsed: raise ppo.entropy_coef. Oscillating: lower ppo.learning_rate. Uniform: train longer.",
)
def _entropy(run: RunRecord) -> Outcome:
    # Few rows give an entropy of any size, so that such updates are left out, and heads that had no more.
    heads = _entropies(run)
    if not heads:
        return undecided(f"no head had a choice in {ENOUGH_ROWS} rows of any update")
    # Of the length that was asked for: while training runs, its last quarter is not there yet and is not judged.
    progress = run.updates.column("iteration") / max(1, run.params.train.iterations)
    early = progress < EARLY
    late = progress >= 1 - LATE
    # Collapse, oscillation and no change, of every head.
    least = {
        name: float(np.nanmin(values[early]))
        for name, values in heads.items()
        if _any_finite(values[early])
    }
    swing = {name: _swing(values) for name, values in heads.items()}
    below_maximum = {
        name: float((1 - values[late]).max())
        for name, values in heads.items()
        if late.any() and np.isfinite(values[late]).all()
    }
    # The op alone makes it grave that nothing was decided.
    uniform_op = "op" in below_maximum and limits.FROM_UNIFORM.broken_by(below_maximum["op"])
    return weighed(
        [
            *_worst_head(limits.LEAST_ENTROPY, "high", least),
            *_worst_head(limits.SWING_OF_ENTROPY, "medium", swing),
            *_worst_head(limits.FROM_UNIFORM, "medium" if uniform_op else "low", below_maximum),
        ]
    )


def _entropies(run: RunRecord) -> dict[str, Values]:
    """List normalised entropies by head, NaN in updates where too few rows had a choice; without unmeasured heads."""
    samples = run.updates.below("samples_by_head")
    heads = {
        name: np.where(samples[name] >= ENOUGH_ROWS, values, np.nan)
        for name, values in run.updates.below("entropy_by_head").items()
        if name in samples
    }
    return {name: values for name, values in heads.items() if _any_finite(values)}


def _any_finite(values: Values) -> bool:
    return bool(np.isfinite(values).any())


def _swing(values: Values) -> float:
    """Measure peak to peak around the running mean; 0 for fewer updates than two windows, or with gaps."""
    if len(values) < 2 * WINDOW or not np.isfinite(values).all():
        return 0.0
    # Around the running mean, since a steady fall is what entropy should do and is no swing.
    running_mean = np.convolve(values, np.full(WINDOW, 1 / WINDOW), mode="valid")
    return float(np.ptp(values[WINDOW // 2 : -(WINDOW // 2)] - running_mean))


# --- change of the policy in an update -------------------------------------------------------------------------------


@check(
    id="R1",
    layer="learning",
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
    # Before any optimiser step the policy is the one that acted, so that only rounding may keep the ratio from 1.
    deviation = run.updates.column("first_ratio_deviation")
    evidence = worst_updates(
        run, "first_ratio_deviation", ~(deviation <= RATIO_TOLERANCE)
    )  # NaN is bad
    limit = Limit("largest |ratio - 1|", RATIO_TOLERANCE)
    return weighed([Reading(limit, float(np.max(deviation)), None, evidence)])


@sign(
    id="R2",
    title="Importance ratios explode",
    severity="high",
    question="Do importance ratios stay near the clip range?",
    needs=("updates.ratio_mean", "updates.ratio_min", "updates.ratio_max"),
    threshold=(
        f"mean ratio of an update > {limits.LARGEST_MEAN_RATIO}: high; any ratio > {limits.LARGEST_RATIO} or < "
        f"{limits.SMALLEST_RATIO}: medium"
    ),
    source=f"mean: TRL ratio_threshold 10; single ratios {OURS}",
    fix="Lower ppo.learning_rate or ppo.epochs; check R1 first.",
)
def _ratios(run: RunRecord) -> Outcome:
    # Each limit reads another column: the mean shows a shift, the extremes show single samples that dominate.
    def furthest(limit: Limit, name: str, severity: Severity) -> Reading:
        values = run.updates.column(name)
        bad = values > limit.value if limit.above else values < limit.value
        return Reading(
            limit,
            values.max() if limit.above else values.min(),
            severity,
            worst_updates(run, name, bad),
        )

    # The gravest first: weighed() reports one, and the others follow from the same updates.
    return weighed(
        [
            furthest(limits.LARGEST_MEAN_RATIO, "ratio_mean", "high"),
            furthest(limits.LARGEST_RATIO, "ratio_max", "medium"),
            furthest(limits.SMALLEST_RATIO, "ratio_min", "medium"),
        ]
    )


# Standard error of a median over that of a mean, of a normal distribution: sqrt(pi / 2)
MEDIAN_ERROR = 1.2533


@sign(
    id="R3",
    title="Updates move the policy too far, or not at all",
    severity="critical",
    question="Is the KL divergence of updates, and of every single one, small, but not zero?",
    # Of the whole update: an estimate at its last minibatch measures the rule that stops there.
    needs=("updates.update_kl",),
    minimum=PERSISTENT,
    threshold=(
        f"median of {PERSISTENT} consecutive updates less {NOISE:g} standard errors > {limits.CRITICAL_KL}: "
        f"critical; > {limits.HIGH_KL}: high; > max({limits.SUSTAINED_KL}, {EARLY_STOP:g} x target_kl): medium; "
        f"any update > {limits.KL_OF_ONE_UPDATE}: high; all < {number(limits.LARGEST_KL.value)}: medium"
    ),
    source=f"Huang et al. 2022 (below 0.02); Spinning Up (target 0.01-0.05, stop at 1.5x); window, one update {OURS}",
    fix="Lower ppo.learning_rate, ppo.epochs, or set ppo.target_kl; at zero, check gradients and advantages.",
)
def _divergence(run: RunRecord) -> Outcome:
    kl = run.updates.column("update_kl")
    # Sustained: the largest median of consecutive updates, less its noise.
    stretches = _windows(kl, PERSISTENT)
    noise = NOISE * MEDIAN_ERROR * stretches.std(axis=1, ddof=1) / np.sqrt(PERSISTENT)
    sustained = float((np.median(stretches, axis=1) - noise).max())
    # A target that the user has set is allowed to be reached, up to where the trainer itself stops.
    target = run.params.train.ppo.target_kl or 0.0
    usual = Limit(limits.SUSTAINED_KL.name, max(limits.SUSTAINED_KL.value, EARLY_STOP * target))

    def above(limit: Limit, severity: Severity, value: float = sustained) -> Reading:
        return Reading(limit, value, severity, worst_updates(run, "update_kl", kl > limit.value))

    # From critical to nothing at all; a policy that does not move is the mildest, as it has lost nothing.
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


@sign(
    id="V1",
    title="The critic does not explain the returns",
    severity="medium",
    question="Is the critic better than a constant?",
    needs=("updates.explained_variance", "updates.return_std"),
    minimum=PERSISTENT,
    threshold=(
        f"of updates whose returns deviate by {ADVANTAGE_SIGMA_FLOOR:g} or more, taken together, the upper end of the "
        f"{percent(CONFIDENCE)} interval: of {LASTING} (of all where there are fewer) < {limits.EXPLAINED_VARIANCE}; "
        f"of the last {percent(SECOND_HALF)}, if {LASTING}, < {limits.LATE_EXPLAINED_VARIANCE}"
    ),
    source=f"Stable-Baselines3 logger (0 = a constant, < 0 worse); other numbers {OURS}",
    fix="Check the scale of returns and the gradients; raise ppo.value_coef.",
)
def _explained_variance(run: RunRecord) -> Outcome:
    # Where returns hardly differ there is nothing to explain: the share of next to nothing is any number.
    differ = run.updates.column("return_std") >= ADVANTAGE_SIGMA_FLOOR
    if differ.sum() < PERSISTENT:
        return undecided(f"returns differ in {differ.sum()} updates, {PERSISTENT} are needed")
    updates = run.updates.where(differ)
    explained = updates.column("explained_variance")
    variance = updates.column("return_std") ** 2
    # The upper end of the interval: a critic is blamed only where chance does not explain its share.
    upper_ends = _explained_together(_windows(explained, LASTING), _windows(variance, LASTING))
    bad = worst_updates(
        run, "explained_variance", differ & (run.updates.column("explained_variance") < 0)
    )
    readings = [Reading(limits.EXPLAINED_VARIANCE, upper_ends.min(), "medium", bad)]
    # Early on a critic has seen little, so that the stricter limit is for the second half.
    late = updates.column("iteration") >= (1 - SECOND_HALF) * run.params.train.iterations
    if late.sum() >= LASTING:
        upper_end = _explained_together(explained[None, late], variance[None, late])[0]
        readings.append(Reading(limits.LATE_EXPLAINED_VARIANCE, upper_end, "medium"))
    return weighed(readings)


def _explained_together(explained: Values, variance: Values) -> Values:
    """Estimate the upper end of the 95 % interval of the share of returns' variance that values explain over each
    stretch of updates ``[n, width]``.

    It is a ratio of sums (Cochran 1977, Sampling Techniques, chapter 6): a mean of shares would be ruled by updates
    whose returns hardly differ.
    """
    width = explained.shape[1]
    unexplained = (1.0 - explained) * variance
    total = variance.sum(axis=1)
    share = unexplained.sum(axis=1) / total
    residual = unexplained - share[:, None] * variance
    # The error of a ratio comes from what is left after the common share is taken off each update.
    error = np.sqrt((residual**2).sum(axis=1) * width / (width - 1)) / total
    return 1.0 - share + stats.t.ppf((1.0 + CONFIDENCE) / 2.0, width - 1) * error


# --- gradients and memory --------------------------------------------------------------------------------------------


@sign(
    id="G2",
    title="A head is starved of gradient",
    severity="high",
    question="Does every head that had choices to make get its share of the gradient?",
    needs=("updates.grad_norm_by_part", "updates.samples_by_head"),
    minimum=PERSISTENT,
    threshold=(
        f"< {percent(limits.SHARE_OF_HEAD.value)} of the gradient norms of all heads in {PERSISTENT} consecutive "
        f"updates, despite at least {ENOUGH_ROWS} rows with a choice"
    ),
    source=OURS,
    fix="Use ppo.ratio: per_head, raise ppo.entropy_coef, or collect more rows (train.envs) per update.",
)
def _head_gradients(run: RunRecord) -> Outcome:
    # Parts of the gradient that are no heads, as the trunk, would make every share small.
    prefix = "head_"
    norms = {
        name.removeprefix(prefix): values
        for name, values in run.updates.below("grad_norm_by_part").items()
        if name.startswith(prefix)
    }
    samples = run.updates.below("samples_by_head")
    # Of the gradients of all heads together.
    total = np.nansum(list(norms.values()), axis=0)
    shares: dict[str, float] = {}
    for name in sorted(norms.keys() & samples.keys()):
        share = np.divide(norms[name], total, out=np.zeros_like(total), where=total > 0)
        # An update with few choices is infinitely good here: a head without choices gets no gradient and is not
        # starved.
        enough = np.where(samples[name] >= ENOUGH_ROWS, share, np.inf)
        # The lowest level that consecutive updates stay below.
        level = float(_windows(enough, PERSISTENT).max(axis=1).min())
        if np.isfinite(level):
            shares[name] = level
    if not shares:
        return undecided(
            f"no head had {ENOUGH_ROWS} rows with a choice in {PERSISTENT} consecutive updates"
        )
    return weighed(_worst_head(limits.SHARE_OF_HEAD, "high", shares))


GROWTH = 10.0  # of the hidden state over an episode
UNITS = 0.9  # share of saturated units
UPDATES_AT_LEAST = 3  # fewer say nothing of how often


@sign(
    id="H1",
    title="The recurrent state saturates or grows",
    severity="high",
    question="Does the hidden state stay in its working range over an episode?",
    needs=("updates.hidden_growth", "updates.hidden_saturated"),
    minimum=UPDATES_AT_LEAST,
    complete=False,
    threshold=(
        f"grows > {GROWTH:g} x from the first to the last step, or > {percent(UNITS)} of units beyond ±{SATURATED:g}, "
        f"in > {percent(limits.BAD_MEMORY.value)} of updates"
    ),
    source=OURS,
    fix="Lower ppo.learning_rate; check observations for unbounded features.",
)
def _memory(run: RunRecord) -> Outcome:
    # A share of updates and no single one: memory may leave its range for a moment and come back.
    growth = run.updates.column("hidden_growth")
    saturated = run.updates.column("hidden_saturated")
    # A fresh core starts from zero state, so its first output is small; NaN counts as bad.
    bad = ~(growth <= GROWTH) | ~(saturated <= UNITS)
    return weighed(
        [Reading(limits.BAD_MEMORY, bad.mean(), None, worst_updates(run, "hidden_growth", bad))]
    )


# --- rewards ---------------------------------------------------------------------------------------------------------

TREND = 20  # iterations by which a trend is judged
P_VALUE = 0.05


@check(
    id="P3",
    layer="learning",
    subject="growth",
    title="Return rises while the true objective does not",
    severity="high",
    question="Do returns and committed accuracy rise together?",
    needs=("episodes.return", "episodes.committed_accuracy"),
    minimum=TREND,
    post_hoc=True,
    threshold=(
        f"over the last {TREND} iterations: Spearman(return, time) > {limits.RETURN_AGAINST_OBJECTIVE} "
        f"(p < {P_VALUE:g}) and Spearman(return, accuracy) < 0"
    ),
    source=f"Sample Factory true_objective; Irpan 2018; rule {OURS}",
    fix="Find the component of the reward that rose; lower its weight.",
)
def _reward_hacking(run: RunRecord) -> Outcome:
    # Ranks, since both may rise in steps of any size; the last iterations, since an honest rise before them would hide
    # the change.
    returns = run.episodes.column("return").mean(axis=1)[-TREND:]
    accuracy = np.nanmean(run.episodes.column("committed_accuracy"), axis=1)[-TREND:]
    rising, p_value = _spearman(returns, np.arange(float(len(returns))))
    together, _ = _spearman(returns, accuracy)
    # Both trends must be there: returns that rise by chance, or alone, prove nothing.
    against = p_value < P_VALUE and together < 0
    return weighed([Reading(limits.RETURN_AGAINST_OBJECTIVE, rising if against else 0.0)])


def _spearman(first: Values, second: Values) -> tuple[float, float]:
    """Correlate ranks; give the two-sided p too. 0 and 1 where one of the two is constant."""
    if np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return 0.0, 1.0
    statistic, p_value = np.asarray(stats.spearmanr(first, second))
    return float(statistic), float(p_value)


HELPED_PCT = 0.1  # points of accuracy
LOST_PCT = 0.2  # likewise
ERRORS = 4.0  # standard errors of the contribution


@sign(
    id="P6",
    subject="growth",
    title="Seeds that harmed their host were fossilized",
    severity="high",
    question="Was every host as good when its seed was fossilized as when it was germinated?",
    needs=(
        "steps.effective_op",
        "steps.slot",
        "steps.live_accuracy",
        "steps.contribution",
        "steps.contribution_se",
        "steps.valid",
    ),
    post_hoc=True,
    threshold=(
        f"> {percent(limits.HARMFUL_SEEDS.value)} of fossilizations with a contribution > {HELPED_PCT:g} points, but "
        f"accuracy lost > {LOST_PCT:g} points since germination, both also > {ERRORS:g} standard errors"
    ),
    source=OURS,
    fix="Make the fossilize bonus conditional on progress since germination.",
)
def _harmful_seeds(run: RunRecord) -> Outcome:
    # Two conditions at once: the reward says that the seed helped, and the host says that it did not.
    seeds = _fossilized(run)
    contribution = seeds["contribution_pct"]
    progress = seeds["progress_pct"]
    noise = ERRORS * seeds["error_pct"]
    if not len(progress):
        return undecided("nothing was fossilized")
    # Beyond what the measurement of one host can be off.
    harmful = (contribution > np.maximum(HELPED_PCT, noise)) & (
        -progress > np.maximum(LOST_PCT, noise)
    )
    rows = zip(*(values[harmful].tolist() for values in seeds.values()), strict=True)
    evidence: list[Evidence] = [dict(zip(seeds, row, strict=True)) for row in rows]
    return weighed([Reading(limits.HARMFUL_SEEDS, float(harmful.mean()), "high", evidence)])


def _fossilized(run: RunRecord) -> dict[str, Array]:
    """List the fossilized seeds, but those germinated in the first step, before which nothing was measured: the gain of
    the host since germination, the contribution and its standard error, in points, all before the op.
    """
    parts: list[dict[str, Array]] = []
    for rows in rows_of_iterations(run):
        steps = {
            name: run.steps.column(name)[rows] for name in ("effective_op", "slot", "live_accuracy")
        }
        # What took effect counts: a fossilization that a gate refused has changed nothing.
        op = steps["effective_op"]
        time, env = np.nonzero((op == Op.FOSSILIZE) & run.steps.column("valid")[rows])
        slot = steps["slot"][time, env]
        # The last germination of the slot before it was fossilized.
        before = np.arange(len(op))[:, None] < time
        germinated = (op[:, env] == Op.GERMINATE) & (steps["slot"][:, env] == slot) & before
        start = len(op) - 1 - germinated[::-1].argmax(axis=0)
        # Without a step before germination there is no accuracy to compare with.
        measured = germinated.any(axis=0) & (start > 0)
        time = time[measured]
        env = env[measured]
        slot = slot[measured]
        start = start[measured]
        # The step before each op, since the numbers of a step are measured after its op.
        accuracy = steps["live_accuracy"]
        parts.append(
            {
                "iteration": run.steps.column("iteration")[rows][:1].repeat(len(time)),
                "step": time + 1,
                "env": env,
                "progress_pct": accuracy[time - 1, env] - accuracy[start - 1, env],
                "contribution_pct": run.steps.column("contribution")[rows][time - 1, env, slot],
                "error_pct": np.nan_to_num(
                    run.steps.column("contribution_se")[rows][time - 1, env, slot]
                ),
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


# --- resumes ---------------------------------------------------------------------------------------------------------


@check(
    id="X9",
    layer="learning",
    title="Something was found when training was resumed",
    severity="high",
    question="At every resume, was everything as it had been left, and the machine the same?",
    needs=("provenance",),
    post_hoc=True,
    threshold="a finding of a resume that is more than information, as grave as that",
    source="ours: a resume continues bit for bit or says why not",
    fix="Read what was found; train anew with --fresh where it matters.",
)
def _resumes(run: RunRecord) -> Outcome:
    assert run.provenance is not None  # stated in needs
    origin = run.provenance.origin
    # Information, as that a run was resumed at all, is none.
    findings = [finding for finding in origin.findings if finding.at_least("low")]
    if not findings:
        return passed(f"{origin.resumes or 0} resumes")
    evidence: list[Evidence] = [
        {"check": finding.check, "found": finding.message} for finding in findings
    ]
    # As grave as the gravest: several mild ones do not add up to a grave one.
    gravest = max(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return failed(f"{len(findings)} findings", gravest.severity, evidence)
