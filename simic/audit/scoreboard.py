"""The worth of each blueprint in training: seeds germinated, kept and pruned, their contribution and cost.

A seed's life in the steps begins where its slot is germinated and ends where the slot has no live seed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from simic.audit.recompute import Steps
from simic.audit.record import RunRecord
from simic.certify.life import FOSSILIZED, GERMINATE, LIVE, PRUNED
from simic.evaluation.result import Frozen
from simic.growth.networks.blueprints import blueprints_of

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


@dataclass(frozen=True)
class _Seed:
    blueprint: int
    kept: bool
    pruned: bool
    contribution: float  # NaN: never measured
    params: float  # NaN: something else changed in the same step
    flops: float


def scores(run: RunRecord) -> tuple[Score, ...]:
    """Score every blueprint that germinated, the most often kept first; empty without the steps."""
    if not len(run.steps) or any(name not in run.steps for name in NEEDED):
        return ()
    seeds: dict[int, list[_Seed]] = {}
    iterations = run.steps.column("iteration")
    bare = {cost: int(run.steps.column(f"committed_{cost}").min()) for cost in COSTS}  # no episode begins with a seed
    for iteration in np.unique(iterations):
        rows = run.steps.where(iterations == iteration).columns
        for seed in _seeds(rows, bare):
            seeds.setdefault(seed.blueprint, []).append(seed)
    names = [kind.name for kind in blueprints_of(run.params.train.host.family)]
    scores = [_score(names[kind] if kind < len(names) else f"number {kind}", own) for kind, own in seeds.items()]
    return tuple(sorted(scores, key=lambda score: (-score.kept, -score.germinated, score.blueprint)))


def _score(name: str, seeds: list[_Seed]) -> Score:
    def measured(values: list[float]) -> list[float]:
        return [value for value in values if np.isfinite(value)]

    params, flops = (measured([getattr(seed, cost) for seed in seeds]) for cost in COSTS)
    return Score(
        blueprint=name,
        germinated=len(seeds),
        kept=sum(seed.kept for seed in seeds),
        pruned=sum(seed.pruned for seed in seeds),
        contribution_kept=Mean.of(measured([seed.contribution for seed in seeds if seed.kept])),
        contribution_pruned=Mean.of(measured([seed.contribution for seed in seeds if seed.pruned])),
        params=float(np.mean(params)) if params else None,
        flops=float(np.mean(flops)) if flops else None,
    )


def _seeds(steps: Steps, bare: Mapping[str, int]) -> Iterator[_Seed]:
    """Yield the seeds of one iteration; ``bare`` is the cost of the host alone."""
    live = np.isin(steps["stage"], LIVE)
    changed = np.diff(live, axis=0, prepend=False)
    began = (steps["effective_op"] == GERMINATE) & steps["valid"]
    added = {cost: np.diff(steps[cost], axis=0, prepend=bare[cost]) for cost in COSTS}
    for t, env in zip(*np.nonzero(began), strict=True):
        slot = int(steps["slot"][t, env])
        after = live[t:, env, slot]
        end = t + (len(after) if after.all() else int(np.argmin(after)))
        stage = steps["stage"][:, env, slot]
        contribution = steps["contribution"][t:end, env, slot]
        measured = contribution[np.isfinite(contribution)]
        alone = changed[t, env].sum() == changed[t, env, slot]  # else other seeds changed the cost in that step, too
        yield _Seed(
            blueprint=int(steps["blueprint"][t, env]),
            kept=bool((stage[t:end] == FOSSILIZED).any()),
            pruned=bool(end < len(stage) and stage[end] == PRUNED),
            contribution=float(measured[-1]) if measured.size else np.nan,
            **{cost: float(added[cost][t, env]) if alone else np.nan for cost in COSTS},
        )
