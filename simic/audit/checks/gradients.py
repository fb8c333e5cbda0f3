"""Gradients of the policy: size, finiteness, who gets them; health of its features and memory."""

import numpy as np

from simic.agent.health import DORMANT_SHARE, SATURATED
from simic.audit.checks.base import Check, Outcome, check, found, judged, passed, undecided
from simic.audit.checks.shared import ENOUGH_ROWS, OURS, longest_run, where
from simic.audit.findings import number, percent
from simic.audit.record import RunRecord

HEAD = "head_"


@check
class GradientNorm(Check):
    """G1: where every step is clipped, the clipping norm sets the step size."""

    id = "G1"
    title = "Gradients are not finite, or far above the clipping norm"
    severity = "critical"
    question = "Are gradients finite, and mostly of the order of the clipping norm?"
    needs = ("updates.grad_norm_max", "updates.grad_clipped_fraction", "updates.skipped_steps")
    minimum = 3
    FACTOR, SHARE, FIRST = 10.0, 0.1, 3
    threshold = (
        f"a step skipped as not finite: critical; after warm start and {FIRST} updates > {FACTOR:g} x the clipping "
        f"norm in > {percent(SHARE)} of updates: medium; every step clipped: low"
    )
    source = "clip 0.5: CleanRL and Huang et al. 2022; ratios " + OURS
    fix = "Not finite: look at the rewards and observations of that iteration. Large: check value targets (V2)."
    passes_when = "no step is skipped, few norms are large, and not every step is clipped"
    post_hoc = True  # while it runs, the trainer skips such steps up to a budget and then stops by itself

    def examine(self, run: RunRecord) -> Outcome:
        table, clip = run.updates, run.params.train.ppo.max_grad_norm
        norm, skipped = table.column("grad_norm_max"), table.column("skipped_steps")
        measured = f"median of largest norms {np.median(norm):.3g} (clip {clip:g})"
        if skipped.sum() > 0:
            return found(f"{int(skipped.sum())} steps skipped", None, where(run, "skipped_steps", skipped > 0))
        settled = table.column("iteration") >= run.params.train.taught + self.FIRST  # values start out wrong
        if not settled.any():
            return undecided(f"no step is skipped; no update after the warm start and {self.FIRST} more")
        large = (norm > self.FACTOR * clip) & settled
        if large[settled].mean() > self.SHARE:
            return found(measured, "medium", where(run, "grad_norm_max", large))
        always = table.column("grad_clipped_fraction")[settled].min() >= 1.0
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
    SHARE = 0.2
    threshold = f"any update without a step: medium; > {percent(SHARE)} of updates: high"
    source = OURS
    fix = "Check R1 (ratio 1 before any step) and G1 (skipped steps); raise ppo.target_kl or lower the learning rate."
    passes_when = "every update takes a step"

    def examine(self, run: RunRecord) -> Outcome:
        idle = run.updates.column("steps") < 1
        measured = f"{int(idle.sum())} of {idle.size} updates"
        severity = "high" if idle.mean() > self.SHARE else "medium"
        return found(measured, severity, where(run, "steps", idle)) if idle.any() else passed(measured)


@check
class HeadGradients(Check):
    """G2: a head that gets almost no gradient, or hardly any samples, does not learn."""

    id = "G2"
    title = "A head is starved of gradient"
    severity = "high"
    question = "Does every head that had choices to make get its share of the gradient?"
    needs = ("updates.grad_norm_by_part.head_op", "updates.samples_by_head.op")
    SHARE, UPDATES = 0.01, 10
    minimum = UPDATES
    threshold = (
        f"< {percent(SHARE)} of the summed gradient norms of all heads in {UPDATES} consecutive updates, despite at "
        f"least {ENOUGH_ROWS} rows with a choice: high; fewer such rows in {UPDATES} consecutive updates: medium"
    )
    source = OURS
    fix = "Use ppo.ratio: per_head, raise ppo.entropy_coef, or collect more rows (train.envs) per update."
    passes_when = f"no head falls short of {ENOUGH_ROWS} rows or {percent(SHARE)} of the gradient for {UPDATES} updates"

    def examine(self, run: RunRecord) -> Outcome:
        parts = run.updates.below("grad_norm_by_part")
        norms = {name.removeprefix(HEAD): values for name, values in parts.items() if name.startswith(HEAD)}
        samples = run.updates.below("samples_by_head")
        total = np.nansum(list(norms.values()), axis=0)
        decided = {name for name, values in run.params.train.actions.items() if len(set(values)) == 1}
        starved, rare = [], []
        for name in sorted(norms.keys() & samples.keys() - decided):
            enough = samples[name] >= ENOUGH_ROWS
            share = np.divide(norms[name], total, out=np.zeros_like(total), where=total > 0)
            if longest_run(enough & (share < self.SHARE)) >= self.UPDATES:
                starved.append({"head": name, "median_gradient_share": float(np.nanmedian(share))})
            elif longest_run(~enough) >= self.UPDATES:
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
    question = "Is the relative change of the weights per update in the usual range?"
    needs = ("updates.update_ratio",)
    minimum = 3
    LOWEST, HIGHEST = 1e-4, 1e-1
    threshold = f"median outside [{number(LOWEST)}, {number(HIGHEST)}]"
    source = "Andy Jones 2021 (1e-4 .. 1e-2 per step); wider since one update is many steps: " + OURS
    fix = "Too small: raise ppo.learning_rate. Too large: lower it."
    passes_when = "the median lies within the range"

    def examine(self, run: RunRecord) -> Outcome:
        median = float(np.median(run.updates.column("update_ratio")))
        return judged(not self.LOWEST <= median <= self.HIGHEST, f"median {median:.2g}")


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
    GROWTH, UNITS, SHARE = 10.0, 0.9, 0.5
    threshold = (
        f"grows > {GROWTH:g} x from the first to the last step, or > {percent(UNITS)} of units beyond ±{SATURATED:g}, "
        f"in > {percent(SHARE)} of updates"
    )
    source = OURS
    fix = "Lower ppo.learning_rate; check observations for unbounded features (N1)."
    passes_when = f"growth stays within {GROWTH:g} x and saturation within {percent(UNITS)} of units in most updates"

    def examine(self, run: RunRecord) -> Outcome:
        growth, saturated = run.updates.column("hidden_growth"), run.updates.column("hidden_saturated")
        measured = f"median growth {np.nanmedian(growth):.2f}, median saturated share {np.nanmedian(saturated):.2f}"
        # A fresh core starts from zero state, so its first output is small; NaN counts as bad.
        bad = ~(growth <= self.GROWTH) | ~(saturated <= self.UNITS)
        return judged(bad.mean() > self.SHARE, measured, where(run, "hidden_growth", bad))


@check
class DormantUnits(Check):
    """H2: units that never fire are wasted capacity."""

    id = "H2"
    title = "Encoder units are dormant"
    severity = "medium"
    question = "Do most encoder units still respond?"
    needs = ("updates.dormant_units",)
    minimum = 3
    SHARE = 0.25
    threshold = (
        f"> {percent(SHARE)} of units at or below {percent(DORMANT_SHARE)} of the mean activation in the last update"
    )
    source = "Sokar et al. 2023 (arXiv 2302.12902); share " + OURS
    fix = "Lower ppo.learning_rate or ppo.epochs."
    passes_when = f"at most {percent(SHARE)} of the units are dormant"

    def examine(self, run: RunRecord) -> Outcome:
        dormant = run.updates.column("dormant_units")
        measured = f"first {100 * dormant[0]:.0f} %, last {100 * dormant[-1]:.0f} %"
        return judged(not dormant[-1] <= self.SHARE, measured)


@check
class FeatureRank(Check):
    """H3: features that lose rank while their norm grows precede a collapse that clipping cannot prevent."""

    id = "H3"
    title = "Features lose rank"
    severity = "high"
    question = "Do the features that the heads read keep their rank?"
    needs = ("updates.feature_rank", "updates.hidden_norm")
    minimum = 10
    SHARE, UPDATES = 0.5, 3
    threshold = f"rank below {percent(SHARE)} of its maximum in the last {UPDATES} updates, and a hidden norm that grew"
    source = "Moalla et al. 2024 (arXiv 2405.00662); numbers " + OURS
    fix = "Lower ppo.learning_rate and ppo.epochs; use more environments per update."
    passes_when = f"the rank stays above {percent(SHARE)} of its maximum"

    def examine(self, run: RunRecord) -> Outcome:
        rank, norm = run.updates.column("feature_rank"), run.updates.column("hidden_norm")
        last = rank[-self.UPDATES :]
        if not np.isfinite(last).all():
            return undecided("the last updates measured no rank")
        measured = f"maximum {np.nanmax(rank):.0f}, last {rank[-1]:.0f}"
        return judged((last < self.SHARE * np.nanmax(rank)).all() and norm[-1] > norm[0], measured)
