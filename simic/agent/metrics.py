"""Measure an update: each field of ``UpdateMetrics`` carries the sentence that explains it in docs/metrics.md."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Annotated, Any

import torch
from torch import Tensor

from simic.agent.distributions import JointDistribution
from simic.agent.normalization import Reduce, alone
from simic.agent.policy import ActorCritic, Replayed
from simic.agent.rollout import Rollout
from simic.agent.spec import Observation

SATURATED = 0.99
FLAT = 1e-8  # a variance of returns up to here explains nothing
# Each row enumerates ops × slots × heads, before and after; 0.04 % of an iteration (docs/history/experiments.md).
PROBE_ROWS, PROBE_STEPS, PROBE_ENVS = 32, 64, 4


@dataclass(frozen=True, kw_only=True)
class UpdateMetrics:
    """One PPO update; plain Python numbers, NaN where nothing was measured. ``…_by_head`` maps names of heads."""

    policy_loss: Annotated[float, "Negative clipped objective, mean over minibatches."]
    value_loss: Annotated[float, "½ mean squared error of V against the returns, in units of scaled reward."]
    entropy: Annotated[float, "Mean over heads of the normalised entropy H / ln(#legal); 1 is uniform."]
    entropy_by_head: Annotated[dict[str, float], "Normalised entropy where the head mattered and had a choice."]
    entropy_coef: Annotated[float, "Weight of the entropy bonus in this update."]
    approx_kl: Annotated[float, "k3 estimate of KL(old ‖ new) of whole actions at the last minibatch looked at."]
    exact_kl: Annotated[float, "Exact KL(before ‖ after the update) of whole actions on the first minibatch."]
    clip_fraction: Annotated[float, "Share of rows whose ratio of the whole action left the clip range."]
    ratio_mean: Annotated[float, "Mean ratio of whole actions over the minibatches stepped on."]
    ratio_min: Annotated[float, "Smallest ratio of a whole action."]
    ratio_max: Annotated[float, "Largest ratio of a whole action."]
    first_ratio_deviation: Annotated[float, "Largest |ratio − 1|, per head and whole, before the first step."]
    first_ratio_ok: Annotated[bool, "Whether that deviation is within rounding: replay equals what acted."]
    grad_norm: Annotated[float, "Global gradient norm before clipping, mean over steps."]
    grad_norm_max: Annotated[float, "Largest such norm."]
    grad_norm_by_part: Annotated[dict[str, float], "Mean norm before clipping of encoder, core, value, each head."]
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
    samples_by_head: Annotated[dict[str, int], "Rows where the head mattered and had more than one legal choice."]
    hidden_growth: Annotated[float, "Root mean square of the core's output at the last step over the first."]
    hidden_saturated: Annotated[float, "Share of the core's outputs beyond ±0.99."]
    epochs: Annotated[int, "Epochs begun."]
    steps: Annotated[int, "Optimiser steps taken in this update."]
    skipped_steps: Annotated[int, "Steps not taken because loss or gradient was not finite."]
    stopped_early: Annotated[bool, "Whether the divergence ended the update before its last minibatch."]
    updates: Annotated[int, "Updates with at least one step so far, this one included."]


def numbers(metrics: dict, prefix: str = "") -> dict[str, float]:
    """Flatten nested metrics: ``entropy_by_head/op``."""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        flat |= numbers(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: float(value)}
    return flat


@dataclass
class Log:
    """What happened in one update, by minibatch, on the device until it ends.

    A row holds sums and peaks by name, ``norms`` by part of the policy with the total last, and ``verdicts [2]``: too
    far from the old policy; loss and gradient finite.
    """

    rows: list[dict[str, Tensor]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    once: dict[str, Tensor] = field(default_factory=dict)

    def summarize(self, heads: Sequence[str], parts: Sequence[str], max_norm: float) -> tuple[dict[str, Any], bool]:
        """Fetch everything in one transfer; return the metrics that it gives, and whether any step was taken.

        Minibatches after the one that ended the update are left out: where nothing waits for the device they were
        computed in vain.
        """
        every, once = self._to_host()
        verdicts = [(bool(diverged), bool(finite)) for diverged, finite in every["verdicts"]]
        ends = [index for index, (diverged, finite) in enumerate(verdicts) if diverged and finite]
        looked = ends[0] + 1 if ends else len(verdicts)
        host = {name: values[:looked] for name, values in every.items()}
        taken = [index for index, (diverged, finite) in enumerate(verdicts[:looked]) if finite and not diverged]
        steps = {name: [values[index] for index in taken] for name, values in every.items()}

        entropy = {
            head: _share(sum(row[k] for row in steps["entropy"]), sum(row[k] for row in steps["open"]))
            for k, head in enumerate(heads)
        }
        kl = [_share(sum(by_head), rows) for by_head, rows in zip(host["kl"], host["rows"], strict=True)]
        norms = [row[-1] for row in steps["norms"]]
        metrics: dict[str, Any] = {
            "policy_loss": _mean(steps["policy_loss"]),
            "value_loss": _mean(steps["value_loss"]),
            "entropy": _mean([value for value in entropy.values() if not math.isnan(value)]),
            "entropy_by_head": entropy,
            "approx_kl": kl[-1],
            "clip_fraction": _share(sum(steps["clipped"]), sum(steps["rows"])),
            "ratio_mean": _share(sum(steps["ratio"]), sum(steps["rows"])),
            "ratio_min": -_peak(host["minus_ratio_min"]),
            "ratio_max": _peak(host["ratio_max"]),
            "first_ratio_deviation": host["deviation"][0],
            "grad_norm": _mean(norms),
            "grad_norm_max": _peak(norms),
            "grad_norm_by_part": {part: _mean([row[k] for row in steps["norms"]]) for k, part in enumerate(parts)},
            "grad_clipped_fraction": _mean([float(norm > max_norm) for norm in norms]),
            "samples": int(once["samples"]),
            "samples_by_head": dict(zip(heads, map(int, once["samples_by_head"]), strict=True)),
            "epochs": self.epochs[looked - 1],
            "steps": len(taken),
            "skipped_steps": sum(not finite for _, finite in verdicts[:looked]),
            "stopped_early": bool(ends),
        }
        return once | metrics, bool(taken)

    def _to_host(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what there is of each minibatch, and what there is once, as nested lists by name; in one transfer."""
        tensors = self.once | {name: torch.stack([row[name] for row in self.rows]) for name in self.rows[0]}
        found = as_one([tensor.detach().double() for tensor in tensors.values()], lambda flat: flat.cpu())
        host = {name: part.tolist() for name, part in zip(tensors, found, strict=True)}
        return {name: host.pop(name) for name in self.rows[0]}, host


def as_one(tensors: Sequence[Tensor], move: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Move several tensors in one go, as one flat tensor; return them in their shapes."""
    parts = move(torch.cat([tensor.flatten() for tensor in tensors])).split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else nan


def _mean(values: Sequence[float]) -> float:
    return _share(math.fsum(values), len(values))


def _peak(values: Sequence[float]) -> float:
    """Return the maximum; NaN of nothing, and of anything that holds a NaN."""
    return nan if not values or any(math.isnan(value) for value in values) else max(values)


class Probe:
    """Keep the policy's exact distribution on some rows of the first steps of a minibatch, to compare a later one."""

    def __init__(self, policy: ActorCritic, batch: Rollout, seen: Replayed) -> None:
        steps = min(len(batch.valid), PROBE_STEPS)
        envs = min(batch.valid.shape[1], max(PROBE_ENVS, -(-PROBE_ROWS // steps)))
        some = batch.select(torch.arange(envs, device=batch.valid.device))
        masks = {name: mask[:steps] for name, mask in some.masks.items()}
        self.policy, self.state = policy, some.state
        self.observation = Observation(some.features[:steps], some.categories[:steps], masks)
        self.starts = some.starts[:steps] if some.starts_inside else None
        self._stride = max(1, -(-steps * envs // PROBE_ROWS))
        while math.gcd(self._stride, envs) > 1:
            self._stride += 1  # else some environments would have no row
        self.valid = self._rows(some.valid[:steps])
        self.before = self._joint(seen.z[:steps, :envs])

    def _rows(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1)[:: self._stride]

    def _joint(self, z: Tensor) -> JointDistribution:
        with torch.no_grad():
            return self.policy.joint(self._rows(z), {k: self._rows(mask) for k, mask in self.observation.masks.items()})

    def divergence(self, reduce: Reduce) -> Tensor:
        """Return the mean KL(as it was ‖ as it is now) of whole actions in nats."""
        with torch.no_grad():
            z = self.policy.read_by_heads(self.observation, self.state, self.starts)
        kl = self.before.kl(self._joint(z))
        total = torch.stack((torch.where(self.valid, kl, 0.0).sum(), self.valid.sum().to(kl.dtype)))
        total = reduce(total, "sum")
        return total[0] / total[1]


@torch.no_grad()
def health(seen: Replayed, valid: Tensor, reduce: Reduce = alone) -> dict[str, Tensor]:
    """Measure growth and saturation of the core's output on one minibatch of all processes; rows where ``valid [T, N]``
    is False are left out.
    """
    weight = valid[..., None].to(seen.hidden.dtype)
    cells = reduce(seen.hidden.shape[-1] * weight.sum(dim=(1, 2)), "sum")  # per step
    square = reduce((seen.hidden.square() * weight).sum(dim=(1, 2)), "sum")
    saturated = reduce(((seen.hidden.abs() > SATURATED) * weight).sum(), "sum")
    rms = (square / cells.clamp(min=1)).sqrt()
    last = (torch.arange(len(cells), device=cells.device) * (cells > 0)).max()
    growth = rms.index_select(0, last[None])[0] / rms[0].clamp(min=1e-8)
    return {"hidden_growth": growth, "hidden_saturated": saturated / cells.sum()}


@torch.no_grad()
def scales(rollout: Rollout, reduce: Reduce) -> dict[str, Tensor]:
    """Return mean, standard deviation, largest absolute value of advantages and returns, and the explained variance."""
    assert rollout.advantages is not None
    assert rollout.returns is not None
    residual = rollout.returns - rollout.values
    columns = torch.stack((rollout.advantages, rollout.returns, rollout.values, residual), dim=-1).double()
    rows = torch.where(rollout.valid[..., None], columns, 0.0).flatten(0, 1)
    count = reduce(rollout.valid.sum().double(), "sum")
    mean = reduce(rows.sum(dim=0), "sum") / count
    centred = torch.where(rollout.valid.flatten()[:, None], rows - mean, 0.0)
    variance = reduce(centred.square().sum(dim=0), "sum") / count
    peak = reduce(rows.abs().amax(dim=0), "max")
    unexplained = torch.where(variance[1] > FLAT, variance[3] / variance[1], torch.nan)
    return {
        "advantage_mean": mean[0],
        "advantage_std": variance[0].sqrt(),
        "advantage_max_abs": peak[0],
        "return_mean": mean[1],
        "return_std": variance[1].sqrt(),
        "return_max_abs": peak[1],
        "value_mean": mean[2],
        "explained_variance": 1.0 - unexplained,
    }


def largest(x: Tensor) -> Tensor:
    """Return the maximum, −inf of nothing (a process may hold no environment of a minibatch); NaN stays NaN."""
    return x.max() if x.numel() else x.new_tensor(-torch.inf)
