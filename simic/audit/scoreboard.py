"""The worth of each blueprint in training: seeds germinated, kept and pruned, their contribution and cost.

A seed's life in the steps begins where its slot is germinated and ends where the slot has no live seed.
"""

from collections.abc import Mapping
from typing import Self

import numpy as np

from simic.audit.recompute import Steps
from simic.audit.record import RunRecord, Table
from simic.certify.life import FOSSILIZED, GERMINATE, LIVE, PRUNED
from simic.evaluation.result import Frozen
from simic.growth.networks.blueprints import blueprints_of
from simic.telemetry.columns import Array

COSTS = ("params", "flops")
NEEDED = ("effective_op", "slot", "blueprint", "stage", "contribution", "valid", *COSTS)
NEEDED += tuple(f"committed_{cost}" for cost in COSTS)


class Mean(Frozen):
    """Hold a mean over seeds with its standard error, None of one alone."""

    mean: float
    error: float | None
    seeds: int

    @classmethod
    def of(cls, values: list[float]) -> Self | None:
        """Return the mean of the values; None without any."""
        if not values:
            return None
        error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        return cls(mean=float(np.mean(values)), error=error, seeds=len(values))

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" + ("" if self.error is None else f" ± {self.error:.2f}")


class Score(Frozen):
    """Hold one blueprint's counts; last measured contribution in points; mean parameters and FLOPs of one seed."""

    blueprint: str
    germinated: int
    kept: int
    pruned: int
    contribution_kept: Mean | None
    contribution_pruned: Mean | None
    params: float | None
    flops: float | None


def scores(run: RunRecord) -> tuple[Score, ...]:
    """Score every blueprint that germinated, the most often kept first; empty without the steps."""
    if not len(run.steps) or any(name not in run.steps for name in NEEDED):
        return ()
    steps = Table({name: run.steps.column(name) for name in NEEDED})
    iterations = run.steps.column("iteration")
    bare = {cost: int(steps.column(f"committed_{cost}").min()) for cost in COSTS}  # no episode begins with a seed
    parts = [_seeds(steps.where(iterations == iteration).columns, bare) for iteration in np.unique(iterations)]
    seeds = Table({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    names = [kind.name for kind in blueprints_of(run.params.train.host.family)]
    scores = []
    for kind in np.unique(seeds.column("blueprint")).tolist():
        own = seeds.where(seeds.column("blueprint") == kind).columns
        scores.append(_score(names[kind] if kind < len(names) else f"number {kind}", own))
    return tuple(sorted(scores, key=lambda score: (-score.kept, -score.germinated, score.blueprint)))


def _score(name: str, seeds: Mapping[str, Array]) -> Score:
    measured = {cost: seeds[cost][np.isfinite(seeds[cost])] for cost in COSTS}
    contribution, kept, pruned = seeds["contribution"], seeds["kept"], seeds["pruned"]
    known = np.isfinite(contribution)
    return Score(
        blueprint=name,
        germinated=len(kept),
        kept=int(kept.sum()),
        pruned=int(pruned.sum()),
        contribution_kept=Mean.of(contribution[known & kept].tolist()),
        contribution_pruned=Mean.of(contribution[known & pruned].tolist()),
        **{cost: float(values.mean()) if len(values) else None for cost, values in measured.items()},
    )


def _seeds(steps: Steps, bare: Mapping[str, int]) -> dict[str, Array]:
    """Return the seeds of one iteration by what is known of each: NaN for a contribution that was never measured, and
    for a cost where something else changed in the same step. ``bare`` is the cost of the host alone.
    """
    live = np.isin(steps["stage"], LIVE)
    changed = np.diff(live, axis=0, prepend=False)
    start, env = np.nonzero((steps["effective_op"] == GERMINATE) & steps["valid"])
    slot, last, every = steps["slot"][start, env], len(live) - 1, np.arange(len(start))
    time, stage = np.arange(len(live))[:, None], steps["stage"][:, env, slot]
    over = (time >= start) & ~live[:, env, slot]
    end = np.where(over.any(axis=0), over.argmax(axis=0), len(live))
    within = (time >= start) & (time < end)
    contribution = steps["contribution"][:, env, slot]
    measured = within & np.isfinite(contribution)
    newest = last - measured[::-1].argmax(axis=0)
    alone = changed[start, env].sum(axis=1) == changed[start, env, slot]  # else others changed the cost, too
    added = {cost: np.diff(steps[cost], axis=0, prepend=bare[cost])[start, env] for cost in COSTS}
    return {
        "blueprint": steps["blueprint"][start, env],
        "kept": (within & (stage == FOSSILIZED)).any(axis=0),
        "pruned": (end <= last) & (stage[np.minimum(end, last), every] == PRUNED),
        "contribution": np.where(measured.any(axis=0), contribution[newest, every], np.nan),
        **{cost: np.where(alone, values, np.nan) for cost, values in added.items()},
    }
