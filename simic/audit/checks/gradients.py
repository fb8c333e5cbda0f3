"""Gradients of the policy: size, finiteness, share of each head; and the hidden state."""

import numpy as np

from simic.agent.metrics import SATURATED
from simic.audit import limits
from simic.audit.checks.base import (
    ENOUGH_ROWS,
    OURS,
    PERSISTENT,
    Check,
    Outcome,
    Reading,
    Values,
    check,
    undecided,
    weighed,
    where,
    windows,
)
from simic.audit.findings import percent
from simic.audit.limits import Limit
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity

HEAD = "head_"


@check
class GradientNorm(Check):
    """Check G1: gradients are finite and not all clipped."""

    id = "G1"
    title = "Gradients are not finite, or far above the clipping norm"
    severity = "critical"
    question = "Are gradients finite, and mostly of the order of the clipping norm?"
    needs = ("updates.grad_norm_max", "updates.grad_clipped_fraction", "updates.skipped_steps")
    minimum = 3
    FACTOR, FIRST = 10.0, 3
    SKIPPED, SHARE, UNCLIPPED = limits.SKIPPED_STEPS, limits.LARGE_GRADIENTS, limits.UNCLIPPED_STEPS
    threshold = (
        f"more than {SKIPPED:g} steps skipped as not finite: critical; after {FIRST} updates > "
        f"{FACTOR:g} x the clipping norm in > {percent(SHARE)} of updates: medium; < {percent(UNCLIPPED)} of steps not "
        "clipped: low"
    )
    source = "clip 0.5: CleanRL and Huang et al. 2022; ratios " + OURS
    fix = "Not finite: see the gradient norms by layer and the rewards of that iteration. Large: check value targets."
    passes_when = "no step is skipped, few norms are large, and not every step is clipped"
    post_hoc = True  # while it runs, the trainer skips such steps up to a budget and then stops by itself

    def examine(self, run: RunRecord) -> Outcome:
        table, clip = run.updates, run.params.train.ppo.max_grad_norm
        norm, skipped = table.column("grad_norm_max"), table.column("skipped_steps")
        readings = [Reading(self.SKIPPED, skipped.sum(), None, where(run, "skipped_steps", skipped > 0))]
        settled = table.column("iteration") >= self.FIRST  # values start out wrong
        if settled.any():
            large = (norm > self.FACTOR * clip) & settled
            free = 1 - table.column("grad_clipped_fraction")[settled]
            evidence = where(run, "grad_norm_max", large)
            readings += [Reading(self.SHARE, large[settled].mean(), "medium", evidence)]
            readings += [Reading(self.UNCLIPPED, free.mean(), "low")]
        return weighed(readings)


@check
class HeadGradients(Check):
    """Check G2: every head gets its share of gradient and samples."""

    id = "G2"
    title = "A head is starved of gradient"
    severity = "high"
    question = "Does every head that had choices to make get its share of the gradient?"
    needs = ("updates.grad_norm_by_part.head_op", "updates.samples_by_head.op")
    minimum = PERSISTENT
    counted = "update and head with enough rows"
    SHARE, ROWS = limits.SHARE_OF_HEAD, limits.ROWS_OF_HEAD
    threshold = (
        f"< {percent(SHARE)} of the summed gradient norms of all heads in {PERSISTENT} consecutive updates, despite at "
        f"least {ENOUGH_ROWS} rows with a choice: high; with {ENOUGH_ROWS} hosts or more, < {ROWS:g} such rows in "
        f"{PERSISTENT} consecutive updates: low"
    )
    # Few rows are no defect by themselves: a policy that has settled asks the heads of other ops rarely.
    source = (
        f"share {OURS}; fewer rows than hosts: a head is used once an episode or more, so with fewer hosts any is rare"
    )
    fix = "Use ppo.ratio: per_head, raise ppo.entropy_coef, or collect more rows (train.envs) per update."
    passes_when = f"no head falls short of {ROWS:g} rows or {percent(SHARE)} of the gradient for {PERSISTENT} updates"

    def examine(self, run: RunRecord) -> Outcome:
        norms = {
            n.removeprefix(HEAD): v for n, v in run.updates.below("grad_norm_by_part").items() if n.startswith(HEAD)
        }
        samples, train = run.updates.below("samples_by_head"), run.params.train
        total = np.nansum(list(norms.values()), axis=0)
        decided = {name for name, values in train.actions.items() if len(set(values)) == 1}
        stage = run.steps.columns.get("stage")
        if stage is not None and stage.shape[-1] == 1:
            decided.add("slot")  # there is but one
        shares, rows, seen = dict[str, float](), dict[str, float](), 0
        for name in sorted(norms.keys() & samples.keys() - decided):
            enough = samples[name] >= ENOUGH_ROWS
            share = np.divide(norms[name], total, out=np.zeros_like(total), where=total > 0)
            shares[name] = _kept_down(np.where(enough, share, np.inf))
            seen += int(enough.sum())
            if train.envs >= ENOUGH_ROWS:
                rows[name] = _kept_down(samples[name])
        shares = {name: share for name, share in shares.items() if np.isfinite(share)}
        readings = _least(self.SHARE, "high", shares) + _least(self.ROWS, "low", rows)
        few = f"no head had {ENOUGH_ROWS} rows with a choice in {PERSISTENT} consecutive updates"
        return weighed(readings).of(max(seen, len(rows))) if readings else undecided(few).of(seen)


def _kept_down(values: Values) -> float:
    """Return the lowest level that PERSISTENT consecutive values stay below."""
    return float(windows(values, PERSISTENT).max(axis=1).min())


def _least(limit: Limit, severity: Severity, values: dict[str, float]) -> list[Reading]:
    """Return the smallest head with all broken ones as evidence; an empty list without heads."""
    beyond = tuple({"head": head, limit.name: value} for head, value in values.items() if limit.broken_by(value))
    return [Reading(limit, min(values.values()), severity, beyond)] if values else []


@check
class Memory(Check):
    """Check H1: the hidden state neither saturates nor grows over an episode."""

    id = "H1"
    title = "The recurrent state saturates or grows"
    severity = "high"
    question = "Does the hidden state stay in its working range over an episode?"
    needs = ("updates.hidden_growth", "updates.hidden_saturated")
    minimum = 3
    complete = False
    GROWTH, UNITS, SHARE = 10.0, 0.9, limits.BAD_MEMORY
    threshold = (
        f"grows > {GROWTH:g} x from the first to the last step, or > {percent(UNITS)} of units beyond ±{SATURATED:g}, "
        f"in > {percent(SHARE)} of updates"
    )
    source = OURS
    fix = "Lower ppo.learning_rate; check observations for unbounded features."
    passes_when = f"growth stays within {GROWTH:g} x and saturation within {percent(UNITS)} of units in most updates"

    def examine(self, run: RunRecord) -> Outcome:
        growth, saturated = run.updates.column("hidden_growth"), run.updates.column("hidden_saturated")
        # A fresh core starts from zero state, so its first output is small; NaN counts as bad.
        bad = ~(growth <= self.GROWTH) | ~(saturated <= self.UNITS)
        return weighed([Reading(self.SHARE, bad.mean(), None, where(run, "hidden_growth", bad))])
