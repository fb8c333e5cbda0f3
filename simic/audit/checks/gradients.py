"""Gradients of the policy and of its hosts: size, finiteness, who gets them."""

import numpy as np

from simic.audit import limits
from simic.audit.checks.base import Check, Outcome, Reading, check, undecided, weighed
from simic.audit.checks.shared import (
    EMA_DECAY,
    ENOUGH_ROWS,
    MOST_EVIDENCE,
    OURS,
    PERSISTENT,
    Values,
    ema_before,
    where,
    windows,
)
from simic.audit.findings import Evidence, number, percent
from simic.audit.limits import Limit
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity

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
    FACTOR, FIRST = 10.0, 3
    SKIPPED, SHARE, UNCLIPPED = limits.SKIPPED_STEPS, limits.LARGE_GRADIENTS, limits.UNCLIPPED_STEPS
    threshold = (
        f"more than {SKIPPED:g} steps skipped as not finite: critical; after {FIRST} updates > "
        f"{FACTOR:g} x the clipping norm in > {percent(SHARE)} of updates: medium; < {percent(UNCLIPPED)} of steps not "
        "clipped: low"
    )
    source = "clip 0.5: CleanRL and Huang et al. 2022; ratios " + OURS
    fix = "Not finite: see the layers in G5, and the rewards of that iteration. Large: check value targets (V2)."
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
class IdleUpdates(Check):
    """G4: an update that takes no step throws its rollout away."""

    id = "G4"
    title = "Updates take no optimiser step"
    severity = "high"
    question = "Does every update take at least one step?"
    needs = ("updates.steps",)
    minimum = 3
    SHARE, ANY = limits.IDLE_UPDATES, limits.ANY_IDLE_UPDATE
    threshold = f"> {ANY:g} updates without a step: medium; > {percent(SHARE)} of updates: high"
    source = OURS
    fix = "Check R1 (ratio 1 before any step) and G1 (skipped steps); raise ppo.target_kl or lower the learning rate."
    passes_when = "every update takes a step"

    def examine(self, run: RunRecord) -> Outcome:
        idle = run.updates.column("steps") < 1
        evidence = where(run, "steps", idle)
        share = Reading(self.SHARE, idle.mean(), "high", evidence)
        return weighed([share, Reading(self.ANY, idle.sum(), "medium", evidence)])


@check
class HeadGradients(Check):
    """G2: a head that gets almost no gradient, or hardly any samples, does not learn."""

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
    """The lowest level that so many consecutive values stay below."""
    return float(windows(values, PERSISTENT).max(axis=1).min())


def _least(limit: Limit, severity: Severity, values: dict[str, float]) -> list[Reading]:
    """The smallest of all heads, with those beyond the limit as evidence; nothing of nothing."""
    beyond = tuple({"head": head, limit.name: value} for head, value in values.items() if limit.broken_by(value))
    return [Reading(limit, min(values.values()), severity, beyond)] if values else []


@check
class LayerGradients(Check):
    """G5: where a gradient is lost, or none arrives."""

    id = "G5"
    title = "A layer's gradient is not finite, or never comes"
    severity = "critical"
    question = "Does every layer that is used get a finite gradient?"
    needs = ("updates.grad_norm_by_layer.actor.encoder", "updates.non_finite_by_layer.actor.encoder")
    complete = False
    LOST, DEAD = limits.LAYERS_NOT_FINITE, limits.LAYERS_WITHOUT_GRADIENT
    threshold = (
        f"more than {LOST:g} layers with a gradient that is not finite: critical; more than {DEAD:g} without any "
        "gradient in all updates (heads and embeddings of choices only where there was one): high"
    )
    source = "definition; an earlier system's report of layers"
    fix = "Look at the first layer named and at what feeds it; without a gradient it is detached from the loss."
    passes_when = "every layer has a finite gradient"
    post_hoc = True  # as G1

    def examine(self, run: RunRecord) -> Outcome:
        samples = run.updates.below("samples_by_head")
        chose = {name for name, rows in samples.items() if rows.sum() > 0}
        lost = {n: int(v.sum()) for n, v in run.updates.below("non_finite_by_layer").items() if v.sum() > 0}
        norms = {n: v for n, v in run.updates.below("grad_norm_by_layer").items() if _used(n, chose)}
        dead = [name for name, values in norms.items() if (values == 0).all()]
        evidence: list[Evidence] = [{"layer": name, "minibatches": count} for name, count in lost.items()]
        without: list[Evidence] = [{"layer": name} for name in dead]
        return weighed(
            [
                Reading(self.LOST, len(lost), "critical", tuple(evidence[:MOST_EVIDENCE])),
                Reading(self.DEAD, len(dead), "high", tuple(without[:MOST_EVIDENCE])),
            ]
        )


def _used(layer: str, chose: set[str]) -> bool:
    """Whether a gradient can be expected: of heads, and of the embeddings that later heads read, where they chose."""
    if layer.startswith(HEAD):
        return layer.removeprefix(HEAD).partition(".")[0] in chose
    return layer != "given" or len(chose) > 1


@check
class GradientDrift(Check):
    """G6: gradients that rise over a run announce a loss that comes apart; spikes do not count."""

    id = "G6"
    title = "Gradient norms rise over the run"
    severity = "medium"
    question = "Do gradient norms of policy and hosts stay near their average so far?"
    needs = ("updates.grad_norm", "episodes.host_grad_norm")
    minimum = PERSISTENT + 1
    post_hoc = True
    FACTOR = limits.RISE_OF_GRADIENTS
    threshold = (
        f"median over {PERSISTENT} iterations > {FACTOR:g} x the moving average (decay {EMA_DECAY:g}) before them, of "
        "the policy or of the mean host"
    )
    source = "drift of an earlier system's gradient tracker; factor " + OURS
    fix = "Lower ppo.learning_rate, or train.host_optimizer.learning_rate; check V2 for targets that grow."
    passes_when = "neither rises that far"

    def examine(self, run: RunRecord) -> Outcome:
        hosts = run.episodes.column("host_grad_norm")
        finite = np.isfinite(hosts)
        mean = np.where(finite, hosts, 0.0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
        rises = {"policy": _rise(run.updates.column("grad_norm")), "hosts": _rise(mean)}
        worst = max(rises, key=lambda name: rises[name])
        return weighed([Reading(self.FACTOR, rises[worst], None, ({"gradients of": worst},))]).of(len(run.updates))


def _rise(norms: Values) -> float:
    """Largest median of a window over the average before it."""
    after, before = np.median(windows(norms[1:], PERSISTENT), axis=1), ema_before(norms)[1:]
    return float((after / np.maximum(before[: len(after)], 1e-12)).max())


@check
class UpdateSize(Check):
    """G3: the change of the weights per update, relative to the weights."""

    id = "G3"
    title = "Weights change too much or too little per update"
    severity = "low"
    question = "Is the relative change of the weights per update in the usual range?"
    needs = ("updates.update_ratio",)
    minimum = 3
    LOWEST, HIGHEST = limits.SMALLEST_UPDATE, limits.LARGEST_UPDATE
    threshold = f"median outside [{number(LOWEST)}, {number(HIGHEST)}]"
    source = "Andy Jones 2021 (1e-4 .. 1e-2 per step); wider since one update is many steps: " + OURS
    fix = "Too small: raise ppo.learning_rate. Too large: lower it."
    passes_when = "the median lies within the range"

    def examine(self, run: RunRecord) -> Outcome:
        median = float(np.median(run.updates.column("update_ratio")))
        return weighed([Reading(self.LOWEST, median), Reading(self.HIGHEST, median)])
