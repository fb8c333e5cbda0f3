"""Measure an update: each field of ``UpdateMetrics`` carries the sentence that explains it in docs/metrics.md."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from math import nan
from typing import Annotated, Any

import torch
from torch import Tensor

from simic.agent.rollout import Rollout
from simic.transfer import Reduce, alone, as_one

SATURATED = 0.99
FLAT = 1e-8  # a variance of returns up to here explains nothing


@dataclass(frozen=True, kw_only=True)
class UpdateMetrics:
    """One PPO update; plain Python numbers, NaN where nothing was measured. ``…_by_head`` maps names of heads."""

    policy_loss: Annotated[float, "Negative clipped objective, mean over minibatches."]
    value_loss: Annotated[
        float, "½ mean squared error of V against the returns, in units of scaled reward."
    ]
    entropy: Annotated[
        float, "Mean over heads of the normalised entropy H / ln(#legal); 1 is uniform."
    ]
    entropy_by_head: Annotated[
        dict[str, float], "Normalised entropy where the head mattered and had a choice."
    ]
    entropy_coef: Annotated[float, "Weight of the entropy bonus in this update."]
    approx_kl: Annotated[
        float, "k3 estimate of KL(old ‖ new) of whole actions at the last minibatch looked at."
    ]
    update_kl: Annotated[
        float,
        "k3 estimate of KL(before ‖ after the update) of whole actions on the first minibatch.",
    ]
    clip_fraction: Annotated[
        float, "Share of rows whose ratio of the whole action left the clip range."
    ]
    ratio_mean: Annotated[float, "Mean ratio of whole actions over the minibatches stepped on."]
    ratio_min: Annotated[float, "Smallest ratio of a whole action."]
    ratio_max: Annotated[float, "Largest ratio of a whole action."]
    first_ratio_deviation: Annotated[
        float, "Largest |ratio − 1|, per head and whole, before the first step."
    ]
    first_ratio_ok: Annotated[
        bool, "Whether that deviation is within rounding: replay equals what acted."
    ]
    grad_norm: Annotated[float, "Global gradient norm before clipping, mean over steps."]
    grad_norm_max: Annotated[float, "Largest such norm."]
    grad_norm_by_part: Annotated[
        dict[str, float], "Mean norm before clipping of encoder, core, value, each head."
    ]
    grad_clipped_fraction: Annotated[float, "Share of steps whose gradient was clipped."]
    learning_rate: Annotated[float, "Learning rate of the update."]
    explained_variance: Annotated[float, "1 − Var(R − V) / Var(R) of the values when acting."]
    advantage_mean: Annotated[float, "Mean advantage before normalisation."]
    advantage_std: Annotated[float, "Standard deviation of the advantages before normalisation."]
    advantage_max_abs: Annotated[float, "Largest |advantage| before normalisation."]
    return_mean: Annotated[float, "Mean return, the target of V."]
    return_std: Annotated[float, "Standard deviation of the returns."]
    return_max_abs: Annotated[float, "Largest |return|."]
    value_mean: Annotated[float, "Mean V when acting."]
    samples: Annotated[int, "Valid rows of the rollout."]
    samples_by_head: Annotated[
        dict[str, int], "Rows where the head mattered and had more than one legal choice."
    ]
    hidden_growth: Annotated[
        float, "Root mean square of the core's output at the last step over the first."
    ]
    hidden_saturated: Annotated[float, "Share of the core's outputs beyond ±0.99."]
    epochs: Annotated[int, "Epochs begun."]
    steps: Annotated[int, "Optimiser steps taken in this update."]
    skipped_steps: Annotated[int, "Steps not taken because loss or gradient was not finite."]
    stopped_early: Annotated[
        bool, "Whether the divergence ended the update before its last minibatch."
    ]
    updates: Annotated[int, "Updates with at least one step so far, this one included."]


def numbers(metrics: dict, prefix: str = "") -> dict[str, float]:
    """Flatten nested metrics: ``entropy_by_head/op``."""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        flat |= (
            numbers(value, f"{prefix}{name}/")
            if isinstance(value, dict)
            else {prefix + name: float(value)}
        )
    return flat


@dataclass
class Log:
    """What happened in one update, on the device until it ends.

    Rows are by minibatch: sums and peaks of ``Losses`` by name, the verdict, and ``norms`` by part of the policy with
    the total last. ``once`` is measured once in an update.
    """

    once: dict[str, Tensor]
    rows: list[dict[str, Tensor]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)

    def add(self, epoch: int, row: dict[str, Tensor]) -> None:
        """Add a minibatch of an epoch, counted from 0."""
        self.rows.append(row)
        self.epochs.append(epoch + 1)

    def summarize(
        self, heads: Sequence[str], parts: Sequence[str], max_grad_norm: float
    ) -> dict[str, Any]:
        """Fetch everything in one transfer, and compute the metrics.

        Args:
            heads: Names of the action's heads.
            parts: Names of the parts of the policy whose gradients are watched.
            max_grad_norm: To which gradients were clipped.
        """
        # In float64 counts and float32 values pass through one tensor unchanged.
        stacked = {name: torch.stack([row[name] for row in self.rows]) for name in self.rows[0]}
        doubles = [tensor.detach().double() for tensor in (*stacked.values(), *self.once.values())]
        lists = (tensor.tolist() for tensor in as_one(doubles, lambda flat: flat.cpu()))
        columns: dict[str, Any] = {name: next(lists) for name in stacked}
        once: dict[str, Any] = {name: next(lists) for name in self.once}

        # Minibatches behind the one that ended the update are left out: where nothing waits for the device they were
        # computed in vain.
        stops = [bool(stop) for stop in columns["stop"]]
        count = stops.index(True) + 1 if any(stops) else len(stops)
        columns = {name: values[:count] for name, values in columns.items()}
        is_step = [bool(step) for step in columns["step"]]
        steps = {name: list(compress(values, is_step)) for name, values in columns.items()}

        # Means over the rows of all steps; of entropies by head, where it had a choice.
        entropy = {
            head: _share(
                sum(row[k] for row in steps["entropy"]), sum(row[k] for row in steps["choice"])
            )
            for k, head in enumerate(heads)
        }
        grad_norms = [row[-1] for row in steps["norms"]]
        metrics: dict[str, Any] = {
            "policy_loss": _mean(steps["policy_loss"]),
            "value_loss": _mean(steps["value_loss"]),
            "entropy": _mean([value for value in entropy.values() if not math.isnan(value)]),
            "entropy_by_head": entropy,
            "approx_kl": _share(sum(columns["kl"][-1]), columns["rows"][-1]),
            "clip_fraction": _share(sum(steps["clipped"]), sum(steps["rows"])),
            "ratio_mean": _share(sum(steps["ratio"]), sum(steps["rows"])),
            "ratio_min": -_peak(columns["minus_ratio_min"]),
            "ratio_max": _peak(columns["ratio_max"]),
            "first_ratio_deviation": columns["deviation"][0],
            "grad_norm": _mean(grad_norms),
            "grad_norm_max": _peak(grad_norms),
            "grad_norm_by_part": {
                part: _mean([row[k] for row in steps["norms"]]) for k, part in enumerate(parts)
            },
            "grad_clipped_fraction": _mean([float(norm > max_grad_norm) for norm in grad_norms]),
            "samples": int(once["samples"]),
            "samples_by_head": dict(zip(heads, map(int, once["samples_by_head"]), strict=True)),
            "epochs": self.epochs[count - 1],
            "steps": sum(is_step),
            "skipped_steps": count - sum(map(int, columns["finite"])),
            "stopped_early": any(stops),
        }
        return once | metrics


def _share(part: float, total: float) -> float:
    return part / total if total else nan


def _mean(values: Sequence[float]) -> float:
    return _share(math.fsum(values), len(values))


def _peak(values: Sequence[float]) -> float:
    """Find the maximum; NaN of nothing, and of anything that holds a NaN."""
    return nan if not values or any(math.isnan(value) for value in values) else max(values)


@torch.no_grad()
def health(hidden: Tensor, valid: Tensor, reduce: Reduce = alone) -> dict[str, Tensor]:
    """Measure growth and saturation of the core's output on one minibatch of all processes.

    Args:
        hidden: The core's outputs ``[T, N, H]``.
        valid: Bool ``[T, N]``; other rows count nothing.
        reduce: Combines a tensor of all processes.

    Returns:
        ``hidden_growth`` and ``hidden_saturated``, scalars; see ``UpdateMetrics``.
    """
    # A memory that only grows forgets nothing, and one whose units are saturated passes no gradient back in time.
    weight = valid[..., None].to(hidden.dtype)
    cells = reduce(hidden.shape[-1] * weight.sum(dim=(1, 2)), "sum")  # per step
    square = reduce((hidden.square() * weight).sum(dim=(1, 2)), "sum")
    saturated = reduce(((hidden.abs() > SATURATED) * weight).sum(), "sum")
    rms = (square / cells.clamp(min=1)).sqrt()
    # The last step at which any row was valid: episodes may end early.
    last = (torch.arange(len(cells), device=cells.device) * (cells > 0)).max()
    growth = rms.index_select(0, last[None])[0] / rms[0].clamp(min=1e-8)
    return {"hidden_growth": growth, "hidden_saturated": saturated / cells.sum().clamp(min=1)}


@torch.no_grad()
def scales(rollout: Rollout, reduce: Reduce) -> dict[str, Tensor]:
    """Measure advantages, returns and values before normalisation, and the explained variance."""
    assert rollout.advantages is not None
    assert rollout.returns is not None
    # All four together, in as few exchanges between processes as one would need; the mean first, then the deviations.
    residual = rollout.returns - rollout.values
    columns = torch.stack(
        (rollout.advantages, rollout.returns, rollout.values, residual), dim=-1
    ).double()
    rows = torch.where(rollout.valid[..., None], columns, 0.0).flatten(0, 1)
    count = reduce(rollout.valid.sum().double(), "sum")
    mean = reduce(rows.sum(dim=0), "sum") / count
    centred = torch.where(rollout.valid.flatten()[:, None], rows - mean, 0.0)
    variance = reduce(centred.square().sum(dim=0), "sum") / count
    peak = reduce(rows.abs().amax(dim=0), "max")
    return {
        "advantage_mean": mean[0],
        "advantage_std": variance[0].sqrt(),
        "advantage_max_abs": peak[0],
        "return_mean": mean[1],
        "return_std": variance[1].sqrt(),
        "return_max_abs": peak[1],
        "value_mean": mean[2],
        # Returns that do not vary leave nothing to explain: the quotient would be rounding over rounding.
        "explained_variance": 1.0
        - torch.where(variance[1] > FLAT, variance[3] / variance[1], torch.nan),
    }


def largest(x: Tensor) -> Tensor:
    """Find the maximum, −inf of nothing (a process may hold no environment of a minibatch); NaN stays NaN."""
    return x.max() if x.numel() else x.new_tensor(-torch.inf)
