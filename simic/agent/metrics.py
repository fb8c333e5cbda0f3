"""Measure an update: each field of ``UpdateMetrics`` carries the sentence that explains it in docs/metrics.md."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import nan
from typing import Annotated, Any, get_type_hints

import torch
from torch import Tensor

from simic.agent.distributions import JointDistribution
from simic.agent.normalization import OBSERVATION_CLIP, Normalizers, Reduce, alone
from simic.agent.policy import ActorCritic, Replayed
from simic.agent.rollout import Position, Rollout
from simic.agent.spec import Head, Observation
from simic.transfer import constant

RANK_SHARE = 0.99
DORMANT_SHARE = 0.025  # of the mean activation of the layer (Sokar et al. 2023, arXiv 2302.12902)
SATURATED = 0.99
RANK_ROWS = 256  # the decomposition is cubic
# Each row enumerates ops × slots × heads, before and after; 0.04 % of an iteration (docs/history/measurements.md).
PROBE_ROWS, PROBE_STEPS, PROBE_ENVS = 32, 64, 4


@dataclass(frozen=True, kw_only=True)
class UpdateMetrics:
    """One PPO update; plain Python numbers, NaN where nothing was measured. ``…_by_head`` maps names of heads."""

    policy_loss: Annotated[float, "Negative clipped objective, mean over minibatches."]
    value_loss: Annotated[float, "½ mean squared error of V against the returns, in units of scaled reward."]
    entropy: Annotated[float, "Mean over heads of the normalised entropy H / ln(#legal); 1 is uniform."]
    entropy_by_head: Annotated[dict[str, float], "Normalised entropy where the head mattered and had a choice."]
    first_entropy: Annotated[
        float, "`entropy` of the first minibatch, before any step; without heads that begin with a lean."
    ]
    entropy_coef: Annotated[float, "Weight of the entropy bonus in this update."]
    entropy_bonus: Annotated[float, "What it took off the loss, mean over minibatches."]
    approx_kl: Annotated[float, "k3 estimate of KL(old ‖ new) of whole actions at the last minibatch looked at."]
    approx_kl_max: Annotated[float, "Largest such estimate of any minibatch of the update."]
    kl_k1: Annotated[float, "k1 estimate (mean −ln r) at the last minibatch; if it is far from k3, trust neither."]
    exact_kl: Annotated[float, "Exact KL(before ‖ after the update) of whole actions on the first minibatch."]
    clip_fraction: Annotated[float, "Share of rows whose ratio of the whole action left the clip range."]
    ratio_mean: Annotated[float, "Mean ratio of whole actions over the minibatches stepped on."]
    ratio_min: Annotated[float, "Smallest ratio of a whole action."]
    ratio_max: Annotated[float, "Largest ratio of a whole action."]
    first_ratio_deviation: Annotated[float, "Largest |ratio − 1|, per head and whole, before the first step."]
    first_ratio_ok: Annotated[bool, "Whether that deviation is within rounding: replay equals what acted."]
    max_abs_log_prob: Annotated[float, "Largest |ln π| of a relevant head's choice."]
    grad_norm: Annotated[float, "Global gradient norm before clipping, mean over steps."]
    grad_norm_max: Annotated[float, "Largest such norm."]
    grad_norm_by_part: Annotated[dict[str, float], "Mean norm before clipping of encoder, core, value, each head."]
    grad_norm_by_layer: Annotated[dict[str, float], "The same of each layer of the policy."]
    non_finite_by_layer: Annotated[dict[str, int], "Minibatches in which a layer's gradient was not finite."]
    grad_clipped_fraction: Annotated[float, "Share of steps whose gradient was clipped."]
    learning_rate: Annotated[float, "Learning rate of the update."]
    adam_eps: Annotated[float, "Adam's ε."]
    update_ratio: Annotated[float, "‖change of the weights‖ / ‖weights‖ over the whole update."]
    max_second_moment: Annotated[float, "Largest second moment that Adam holds."]
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
    observation_clipped: Annotated[float, "Share of normalised observation values that lie on the clip of ±10."]
    normalizer_deviation: Annotated[float, "Largest |stored − recomputed| observation, by the scales of acting."] = nan
    start_state: Annotated[float, "Largest |value| of a memory in which an episode of the rollout began."] = nan
    cell_norm: Annotated[float, "Root mean square of the LSTM's cell at the end of the rollout."] = nan
    cell_saturated: Annotated[float, "Share of those cells with |tanh| beyond 0.99."] = nan
    hidden_norm: Annotated[float, "Root mean square of the core's output."]
    hidden_growth: Annotated[float, "Root mean square of the core's output at the last step over the first."]
    hidden_saturated: Annotated[float, "Share of the core's outputs beyond ±0.99."]
    dormant_units: Annotated[float, "Share of encoder units at or below 2.5 % of the mean activation."]
    feature_rank: Annotated[float, "Singular values of z that make up 99 % of their sum."]
    epochs: Annotated[int, "Epochs begun."]
    steps: Annotated[int, "Optimiser steps taken in this update."]
    skipped_steps: Annotated[int, "Steps not taken because loss or gradient was not finite."]
    stopped_early: Annotated[bool, "Whether the divergence ended the update before its last minibatch."]
    updates: Annotated[int, "Updates with at least one step so far, this one included."]


def explanations() -> dict[str, str]:
    """Return the sentence of each metric by its name."""
    hints = get_type_hints(UpdateMetrics, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def numbers(metrics: dict, prefix: str = "") -> dict[str, float]:
    """Flatten nested metrics: ``entropy_by_head/op``."""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        flat |= numbers(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: float(value)}
    return flat


@dataclass
class Log:
    """What happened in one update, by minibatch, on the device until it ends."""

    rows: list[dict[str, Tensor]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    once: dict[str, Tensor] = field(default_factory=dict)

    def add(self, epoch: int, row: dict[str, Tensor]) -> None:
        """Take in one minibatch: sums and peaks by name, ``norms`` by part of the policy with the total last, norms
        ``by_layer``, and ``verdicts [2]``: too far from the old policy; loss and gradient finite.
        """
        self.rows.append(row)
        self.epochs.append(epoch + 1)

    def summarize(
        self, heads: Sequence[Head], parts: Sequence[str], layers: Sequence[str], max_norm: float
    ) -> tuple[dict[str, Any], bool]:
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

        names = [head.name for head in heads]
        by_head = zip(names, _columns(steps["entropy"], names), _columns(steps["open"], names), strict=True)
        entropy = {head: _share(sum(values), sum(counts)) for head, values, counts in by_head}
        first = zip(host["entropy"][0], host["open"][0], heads, strict=True)
        kl = [_share(sum(by_head), rows) for by_head, rows in zip(host["kl"], host["rows"], strict=True)]
        norms = [row[-1] for row in steps["norms"]]
        lost = [sum(not math.isfinite(norm) for norm in column) for column in _columns(host["by_layer"], layers)]
        metrics: dict[str, Any] = {
            "policy_loss": _mean(steps["policy_loss"]),
            "value_loss": _mean(steps["value_loss"]),
            "entropy": _mean([value for value in entropy.values() if not math.isnan(value)]),
            "entropy_by_head": entropy,
            "first_entropy": _mean([_share(a, b) for a, b, head in first if b and not head.lean]),
            "entropy_bonus": _mean(steps["bonus"]),
            "approx_kl": kl[-1],
            "approx_kl_max": _peak(kl),
            "kl_k1": _share(host["kl_k1"][-1], host["rows"][-1]),
            "clip_fraction": _share(sum(steps["clipped"]), sum(steps["rows"])),
            "ratio_mean": _share(sum(steps["ratio"]), sum(steps["rows"])),
            "ratio_min": -_peak(host["minus_ratio_min"]),
            "ratio_max": _peak(host["ratio_max"]),
            "first_ratio_deviation": host["deviation"][0],
            "max_abs_log_prob": _peak(host["log_prob"]),
            "grad_norm": _mean(norms),
            "grad_norm_max": _peak(norms),
            "grad_norm_by_part": {part: _mean([row[k] for row in steps["norms"]]) for k, part in enumerate(parts)},
            "grad_norm_by_layer": dict(zip(layers, map(_mean, _columns(steps["by_layer"], layers)), strict=True)),
            "non_finite_by_layer": dict(zip(layers, lost, strict=True)),
            "grad_clipped_fraction": _mean([float(norm > max_norm) for norm in norms]),
            "samples": int(once["samples"]),
            "samples_by_head": dict(zip(names, map(int, once["samples_by_head"]), strict=True)),
            "epochs": self.epochs[looked - 1],
            "steps": len(taken),
            "skipped_steps": sum(not finite for _, finite in verdicts[:looked]),
            "stopped_early": bool(ends),
        }
        return once | metrics, bool(taken)

    def _to_host(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what there is of each minibatch, and what there is once, as nested lists by name; in one transfer."""
        tensors = self.once | {name: torch.stack([row[name] for row in self.rows]) for name in self.rows[0]}
        flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors.values()]).cpu()
        parts = flat.split([tensor.numel() for tensor in tensors.values()])
        named = {name: part.view_as(tensor) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}
        rank = feature_rank(named.pop("feature_gram"))
        host = {name: part.tolist() for name, part in named.items()}
        every = {name: host.pop(name) for name in self.rows[0]}
        return every, host | {"feature_rank": rank}


def _columns(rows: list[list[float]], names: Sequence[str]) -> list[list[float]]:
    """Turn rows by minibatch, of which there may be none, into columns by head or layer."""
    return [[row[k] for row in rows] for k in range(len(names))]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else nan


def _mean(values: Sequence[float]) -> float:
    return _share(math.fsum(values), len(values))


def _peak(values: Sequence[float]) -> float:
    """Return the maximum; NaN of nothing, and of anything that holds a NaN."""
    return nan if not values or any(math.isnan(value) for value in values) else max(values)


class Health:
    """Measure an update from outside: the network's health, and how far policy and weights move.

    It changes nothing and reads nothing from the device: what ``after`` returns is fetched together with the losses.
    ``acted`` is what ``acting`` returned of the rollout.
    """

    def __init__(self, policy: ActorCritic, rollout: Rollout, reduce: Reduce, acted: Mapping[str, Tensor]) -> None:
        self.policy, self.reduce = policy, reduce
        self.measured = {**acted, **scales(rollout, reduce), "observation_clipped": clipped(policy, rollout, reduce)}
        self.start = self._weights()

    def first(self, part: Rollout, seen: Replayed) -> None:
        """Measure the first rows of the update: health of the network, and the policy as it was."""
        self.probe = Probe(self.policy, part, seen)
        self.measured |= health(seen, part.valid, self.reduce)

    def after(self) -> dict[str, Tensor]:
        """Return everything, and how far the update went."""
        change = (self._weights() - self.start).norm() / self.start.norm()
        return self.measured | {"exact_kl": self.probe.divergence(self.reduce), "update_ratio": change}

    @torch.no_grad()
    def _weights(self) -> Tensor:
        return torch.cat([parameter.flatten() for parameter in self.policy.parameters()])


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
def acting(
    policy: ActorCritic, rollout: Rollout, end: Position, normalizers: Normalizers, reduce: Reduce = alone
) -> dict[str, Tensor]:
    """Measure a rollout just collected, before the scales move: whether what is stored is what they give, the memory in
    which episodes began, and the actor's cells where it ended.
    """
    stored, seen = rollout.features, normalizers.see(replace(rollout.observation(), features=rollout.raw_features))
    apart = torch.where(rollout.valid[..., None], (stored - seen.features).abs(), 0.0)
    begun = torch.cat([part.abs() * rollout.starts[0][:, None] for part in rollout.state], dim=-1)
    goes_on = rollout.valid[-1] & ~end.starts
    cell = policy.memory_of_actor(end.state).c * goes_on[:, None]
    counted = goes_on.sum() * cell.shape[1]
    beyond = (cell.tanh().abs() > SATURATED).sum()
    sums = reduce(torch.stack((cell.double().square().sum(), beyond.double(), counted.double())), "sum")
    peaks = reduce(torch.stack((largest(apart), largest(begun))), "max")
    # A policy without memory has none to begin with, and no cells.
    measured = (peaks[0], peaks[1].clamp(min=0.0), (sums[0] / sums[2]).sqrt(), sums[1] / sums[2])
    return dict(zip(("normalizer_deviation", "start_state", "cell_norm", "cell_saturated"), measured, strict=True))


@torch.no_grad()
def health(seen: Replayed, valid: Tensor, reduce: Reduce = alone) -> dict[str, Tensor]:
    """Measure hidden norm, growth and saturation, dormant units and the Gram matrix of z on one minibatch of all
    processes; rows where ``valid [T, N]`` is False are left out.
    """
    weight = valid[..., None].to(seen.hidden.dtype)
    sums = {
        "cells": seen.hidden.shape[-1] * weight.sum(dim=(1, 2)),  # per step
        "square": (seen.hidden.square() * weight).sum(dim=(1, 2)),
        "saturated": ((seen.hidden.abs() > SATURATED) * weight).sum(),
        "activity": (seen.encoded.abs() * weight).sum(dim=(0, 1)),
        "gram": _gram((seen.z * weight).flatten(0, 1)),
    }
    sums = {name: reduce(value, "sum") for name, value in sums.items()}
    cells, square, activity = sums["cells"], sums["square"], sums["activity"]
    rms = (square / cells.clamp(min=1)).sqrt()
    last = (torch.arange(len(cells), device=cells.device) * (cells > 0)).max()
    dormant = (activity <= DORMANT_SHARE * activity.mean()).float().mean()
    growth = rms.index_select(0, last[None])[0] / rms[0].clamp(min=1e-8)
    return {
        "hidden_norm": (square.sum() / cells.sum()).sqrt(),
        "hidden_growth": growth,
        "hidden_saturated": sums["saturated"] / cells.sum(),
        "dormant_units": dormant,
        "feature_gram": sums["gram"],
    }


def _gram(z: Tensor) -> Tensor:
    """Return zᵀ z over some rows. Its eigenvalues, the squares of z's singular values, are left to the host: a
    decomposition would make it wait for the device.
    """
    z = z[:: max(1, -(-len(z) // RANK_ROWS))].double().nan_to_num()
    return z.t() @ z


def feature_rank(gram: Tensor) -> float:
    """Return how many of the largest singular values hold 99 % of their sum (Kumar et al. 2021, arXiv 2010.14498), of
    the matrix whose Gram matrix is given, on the host; NaN where that holds a NaN.
    """
    if gram.isnan().any():
        return nan
    singular = [math.sqrt(max(value, 0.0)) for value in reversed(torch.linalg.eigvalsh(gram).tolist())]
    enough = RANK_SHARE * math.fsum(singular)
    return 1 + sum(share < enough for share in accumulate(singular))


@torch.no_grad()
def clipped(policy: ActorCritic, rollout: Rollout, reduce: Reduce) -> Tensor:
    """Return the share of normalised values that lie on the clip; NaN if no column is normalised."""
    spec = policy.observation_spec
    raw = constant(tuple(spec.raw or (False,) * spec.features), torch.bool, rollout.valid.device)
    cells = rollout.valid[..., None] & ~raw
    counts = torch.stack(((cells & (rollout.features.abs() >= OBSERVATION_CLIP)).sum(), cells.sum())).double()
    counts = reduce(counts, "sum")
    return counts[0] / counts[1]


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
    unexplained = torch.where(variance[1] > 1e-8, variance[3] / variance[1], torch.nan)
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
