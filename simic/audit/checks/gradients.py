"""Gradients of the policy: size, finiteness, who gets them; health of its features and memory."""

import numpy as np

from simic.audit.checks.base import (
    ENOUGH_ROWS,
    OURS,
    Check,
    Outcome,
    check,
    found,
    longest_run,
    passed,
    undecided,
    where,
)
from simic.audit.record import RunRecord

STARVED_UPDATES = 10
HEAD = "head_"


@check
class GradientNorm(Check):
    """G1: pre-clip gradients tell whether clipping is a safety net or the learning rate."""

    id = "G1"
    title = "Gradients are not finite or far beyond the clip"
    severity = "critical"
    question = "Are gradients finite and mostly of the clip's order?"
    needs = ("updates.grad_norm_max", "updates.grad_clipped_fraction", "updates.skipped_steps")
    minimum = 3
    threshold = (
        "a step skipped as not finite: critical; > 10 x clip in > 10 % of updates: medium; every step clipped: low"
    )
    source = "clip 0.5: CleanRL and Huang et al. 2022; ratios " + OURS
    fix = "Not finite: look at that iteration's rewards and observations. Large: check value targets (V2)."
    passes_when = "no step is skipped and not every step is clipped"
    post_hoc = True  # while it runs, the trainer skips such steps up to a budget and then stops by itself

    def examine(self, run: RunRecord) -> Outcome:
        table, clip = run.updates, run.params.train.ppo.max_grad_norm
        norm, skipped = table.column("grad_norm_max"), table.column("skipped_steps")
        measured = f"median of largest norms {np.median(norm):.3g} (clip {clip:g})"
        if skipped.sum() > 0:
            return found(f"{int(skipped.sum())} steps skipped", None, where(run, "skipped_steps", skipped > 0))
        if (norm > 10 * clip).mean() > 0.1:
            return found(measured, "medium", where(run, "grad_norm_max", norm > 10 * clip))
        always = table.column("grad_clipped_fraction").min() >= 1.0
        return found(f"{measured}, every step clipped", "low") if always else passed(measured)


@check
class IdleUpdates(Check):
    """G4: an update that takes no step throws its rollout away."""

    id = "G4"
    title = "Updates take no optimiser step"
    severity = "high"
    question = "Does every update take at least one step?"
    needs = ("updates.steps",)
    minimum = 3
    threshold = "any update without a step: medium; > 20 % of updates: high"
    source = OURS
    fix = "Check R1 (ratio 1 before any step) and G1 (skipped steps); raise ppo.target_kl or lower the learning rate."
    passes_when = "every update takes a step"

    def examine(self, run: RunRecord) -> Outcome:
        idle = run.updates.column("steps") < 1
        measured = f"{int(idle.sum())} of {idle.size} updates"
        severity = "high" if idle.mean() > 0.2 else "medium"
        return found(measured, severity, where(run, "steps", idle)) if idle.any() else passed(measured)


@check
class HeadGradients(Check):
    """G2: a head that gets almost no gradient, or hardly any samples, does not learn."""

    id = "G2"
    title = "A head is starved of gradient"
    severity = "high"
    question = "Does every head that had choices to make get a share of the gradient?"
    needs = ("updates.grad_norm_by_part.head_op", "updates.samples_by_head.op")
    minimum = STARVED_UPDATES
    threshold = (
        "< 1 % of the summed head norms in spite of >= 32 rows for 10 updates: high; fewer than 32 rows with a choice "
        "in 10 consecutive updates: medium"
    )
    source = "earlier system's audits (rare heads starve); numbers " + OURS
    fix = "Use ppo.ratio: per_head, raise ppo.entropy_coef, or collect more rows (train.envs) per update."
    passes_when = "each head has 32 rows and 1 % of the gradient within any 10 updates"

    def examine(self, run: RunRecord) -> Outcome:
        parts = run.updates.below("grad_norm_by_part")
        norms = {name.removeprefix(HEAD): values for name, values in parts.items() if name.startswith(HEAD)}
        samples = run.updates.below("samples_by_head")
        total = np.nansum(list(norms.values()), axis=0)
        starved, rare = [], []
        for name in sorted(norms.keys() & samples.keys()):
            enough = samples[name] >= ENOUGH_ROWS
            share = np.divide(norms[name], total, out=np.zeros_like(total), where=total > 0)
            if longest_run(enough & (share < 0.01)) >= STARVED_UPDATES:
                starved.append({"head": name, "median_gradient_share": float(np.nanmedian(share))})
            elif longest_run(~enough) >= STARVED_UPDATES:
                rare.append({"head": name, "median_rows": float(np.median(samples[name]))})
        if starved:
            return found("starved: " + ", ".join(str(row["head"]) for row in starved), "high", tuple(starved))
        if rare:
            return found("few rows: " + ", ".join(str(row["head"]) for row in rare), "medium", tuple(rare))
        return passed(f"{len(norms)} heads, smallest median of rows {min(np.median(v) for v in samples.values()):.0f}")


@check
class UpdateSize(Check):
    """G3: the change of the weights per update, relative to the weights."""

    id = "G3"
    title = "Weights change too much or too little per update"
    severity = "low"
    question = "Is the relative change of the weights near 1e-3?"
    needs = ("updates.update_ratio",)
    minimum = 3
    threshold = "median outside [1e-4, 1e-1]; one update is many steps, hence the wide upper end"
    source = "Andy Jones 2021 (1e-4 .. 1e-2 per step); per update: " + OURS
    fix = "Change ppo.learning_rate in the direction that is missing."
    passes_when = "the median lies within the range"

    def examine(self, run: RunRecord) -> Outcome:
        median = float(np.median(run.updates.column("update_ratio")))
        measured = f"median {median:.2g}"
        return passed(measured) if 1e-4 <= median <= 1e-1 else found(measured)


@check
class Memory(Check):
    """H1: a memory that saturates or grows over an episode carries nothing."""

    id = "H1"
    title = "The recurrent state saturates or grows"
    severity = "high"
    question = "Does the hidden state stay in its working range over an episode?"
    needs = ("updates.hidden_growth", "updates.hidden_saturated")
    minimum = 3
    complete = False
    threshold = "grows > 10 x from the first to the last step, or > 90 % of units beyond 0.99, in > half of the updates"
    source = "earlier system's LSTM health; numbers " + OURS
    fix = "Lower ppo.learning_rate; check observations for unbounded features (N1)."
    passes_when = "growth stays below 10 and saturation below 90 % in most updates"

    def examine(self, run: RunRecord) -> Outcome:
        growth, saturated = run.updates.column("hidden_growth"), run.updates.column("hidden_saturated")
        measured = f"median growth {np.nanmedian(growth):.2f}, median saturated share {np.nanmedian(saturated):.2f}"
        # A fresh core starts from zero state, so its first output is small; NaN counts as bad.
        bad = ~(growth <= 10) | ~(saturated <= 0.9)
        return found(measured, None, where(run, "hidden_growth", bad)) if bad.mean() > 0.5 else passed(measured)


@check
class DormantUnits(Check):
    """H2: units that never fire are capacity lost."""

    id = "H2"
    title = "Encoder units are dormant"
    severity = "medium"
    question = "Do most encoder units still respond?"
    needs = ("updates.dormant_units",)
    minimum = 3
    threshold = "> 25 % of units below 2.5 % of the mean activation in the last update"
    source = "Sokar et al. 2023 (arXiv 2302.12902); share " + OURS
    fix = "Lower ppo.learning_rate or ppo.epochs."
    passes_when = "at most a quarter of the units is dormant"

    def examine(self, run: RunRecord) -> Outcome:
        dormant = run.updates.column("dormant_units")
        measured = f"first {100 * dormant[0]:.0f} %, last {100 * dormant[-1]:.0f} %"
        return found(measured) if not dormant[-1] <= 0.25 else passed(measured)


@check
class FeatureRank(Check):
    """H3: features that lose rank while their norm grows precede a collapse that clipping cannot prevent."""

    id = "H3"
    title = "Features lose rank"
    severity = "high"
    question = "Do the features that the heads read keep their rank?"
    needs = ("updates.feature_rank", "updates.hidden_norm")
    minimum = 10
    threshold = "rank below half of its maximum for 3 updates while the hidden norm grew"
    source = "Moalla et al. 2024 (arXiv 2405.00662); numbers " + OURS
    fix = "Lower ppo.learning_rate and ppo.epochs; more environments per update."
    passes_when = "rank stays above half of its maximum"

    def examine(self, run: RunRecord) -> Outcome:
        rank, norm = run.updates.column("feature_rank"), run.updates.column("hidden_norm")
        if not np.isfinite(rank[-3:]).all():
            return undecided("the last updates measured no rank")
        measured = f"maximum {np.nanmax(rank):.0f}, last {rank[-1]:.0f}"
        collapsed = (rank[-3:] < 0.5 * np.nanmax(rank)).all() and norm[-1] > norm[0]
        return found(measured) if collapsed else passed(measured)
