"""What is worth knowing of an update besides its losses, measured from outside: exact distributions, health of the
features, scales.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from simic.agent.distributions import JointDistribution
from simic.agent.metrics import ACTING, HEALTH
from simic.agent.normalization import OBSERVATION_CLIP, Normalizers, Reduce
from simic.agent.policy import ActorCritic, Replayed
from simic.agent.ppo import PPO, largest
from simic.agent.rollout import Position, Rollout
from simic.agent.spec import Observation
from simic.transfer import constant

DORMANT_SHARE = 0.025  # of the mean activation of the layer (Sokar et al. 2023, arXiv 2302.12902)
SATURATED = 0.99
RANK_ROWS = 256  # the decomposition is cubic
# Each row enumerates ops × slots × heads, before and after; 0.04 % of an iteration (docs/history/measurements.md).
PROBE_ROWS, PROBE_STEPS, PROBE_ENVS = 32, 64, 4


class Health:
    """Observer of one update of a learner."""

    def __init__(self, ppo: PPO, acted: dict[str, Tensor] | None = None) -> None:
        self.policy, self.adam, self.reduce = ppo.policy, ppo.adam, ppo.reduce
        self.found: dict[str, Tensor] = {}
        self.acted = acted or {}  # see ``acting``

    def before(self, rollout: Rollout) -> None:
        """The scales of the rollout, and the weights."""
        self.found = self.acted | scales(rollout, self.reduce)
        self.found["observation_clipped"] = clipped(self.policy, rollout, self.reduce)
        self.start = self._weights()

    def first(self, part: Rollout, seen: Replayed) -> None:
        """Measure the first rows of the update: health of the network, and the policy as it was."""
        self.probe = Probe(self.policy, part, seen)
        self.found |= health(seen, part.valid, self.reduce)

    def after(self) -> dict[str, Tensor]:
        """Everything, and how far the update went."""
        change = (self._weights() - self.start).norm() / self.start.norm()
        return self.found | {
            "exact_kl": self.probe.divergence(self.reduce),
            "update_ratio": change,
            "max_second_moment": self.adam.largest_second_moment(),
        }

    @torch.no_grad()
    def _weights(self) -> Tensor:
        return torch.cat([parameter.flatten() for parameter in self.adam.parameters])


class Probe:
    """The policy's exact distribution on some rows of the first steps of a minibatch, kept to be compared with a later
    one.
    """

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

    def divergence(self, reduce: Reduce | None) -> Tensor:
        """Return the mean KL(as it was ‖ as it is now) of whole actions in nats."""
        with torch.no_grad():
            z = self.policy.read_by_heads(self.observation, self.state, self.starts)
        kl = self.before.kl(self._joint(z))
        total = torch.stack((torch.where(self.valid, kl, 0.0).sum(), self.valid.sum().to(kl.dtype)))
        total = total if reduce is None else reduce(total, "sum")
        return total[0] / total[1]


@torch.no_grad()
def acting(
    policy: ActorCritic, rollout: Rollout, end: Position, normalizers: Normalizers, reduce: Reduce | None = None
) -> dict[str, Tensor]:
    """Of a rollout just collected, before the scales move: whether what is stored is what they give, the memory in
    which episodes began, and the actor's cells where it ended.
    """
    every = reduce or (lambda x, _: x)
    stored, seen = rollout.features, normalizers.see(replace(rollout.observation(), features=rollout.raw_features))
    apart = torch.where(rollout.valid[..., None], (stored - seen.features).abs(), 0.0)
    begun = torch.cat([part.abs() * rollout.starts[0][:, None] for part in rollout.state], dim=-1)
    goes_on = rollout.valid[-1] & ~end.starts
    cell = policy.memory_of_actor(end.state).c * goes_on[:, None]
    counted = goes_on.sum() * cell.shape[1]
    beyond = (cell.tanh().abs() > SATURATED).sum()
    sums = every(torch.stack((cell.double().square().sum(), beyond.double(), counted.double())), "sum")
    peaks = every(torch.stack((largest(apart), largest(begun))), "max")
    # A policy without memory has none to begin with, and no cells.
    found = (peaks[0], peaks[1].clamp(min=0.0), (sums[0] / sums[2]).sqrt(), sums[1] / sums[2])
    return dict(zip(ACTING, found, strict=True))


@torch.no_grad()
def health(seen: Replayed, valid: Tensor, reduce: Reduce | None = None) -> dict[str, Tensor]:
    """Hidden norm, growth and saturation, dormant units and the Gram matrix of z, of one minibatch of all processes;
    rows where ``valid [T, N]`` is False are left out.
    """
    weight = valid[..., None].to(seen.hidden.dtype)
    sums = {
        "cells": seen.hidden.shape[-1] * weight.sum(dim=(1, 2)),  # per step
        "square": (seen.hidden.square() * weight).sum(dim=(1, 2)),
        "saturated": ((seen.hidden.abs() > SATURATED) * weight).sum(),
        "activity": (seen.encoded.abs() * weight).sum(dim=(0, 1)),
        "gram": _gram((seen.z * weight).flatten(0, 1)),
    }
    if reduce is not None:
        sums = {name: reduce(value, "sum") for name, value in sums.items()}
    cells, square, activity = sums["cells"], sums["square"], sums["activity"]
    rms = (square / cells.clamp(min=1)).sqrt()
    last = (torch.arange(len(cells), device=cells.device) * (cells > 0)).max()
    dormant = (activity <= DORMANT_SHARE * activity.mean()).float().mean()
    growth = rms.index_select(0, last[None])[0] / rms[0].clamp(min=1e-8)
    measured = ((square.sum() / cells.sum()).sqrt(), growth, sums["saturated"] / cells.sum(), dormant, sums["gram"])
    return dict(zip(HEALTH, measured, strict=True))


def _gram(z: Tensor) -> Tensor:
    """zᵀ z over some rows: its eigenvalues are the squares of z's singular values. They are left to the host, since a
    decomposition makes it wait for the device.
    """
    z = z[:: max(1, -(-len(z) // RANK_ROWS))].double().nan_to_num()
    return z.t() @ z


@torch.no_grad()
def clipped(policy: ActorCritic, rollout: Rollout, reduce: Reduce | None) -> Tensor:
    """Share of the values of normalised columns that lie on the clip; NaN if no column is normalised."""
    spec = policy.observation_spec
    raw = constant(tuple(spec.raw or (False,) * spec.features), torch.bool, rollout.valid.device)
    cells = rollout.valid[..., None] & ~raw
    counts = torch.stack(((cells & (rollout.features.abs() >= OBSERVATION_CLIP)).sum(), cells.sum())).double()
    counts = counts if reduce is None else reduce(counts, "sum")
    return counts[0] / counts[1]


@torch.no_grad()
def scales(rollout: Rollout, reduce: Reduce | None) -> dict[str, Tensor]:
    """Mean, standard deviation and largest absolute value of advantages and returns, and the explained variance."""
    assert rollout.advantages is not None
    assert rollout.returns is not None
    residual = rollout.returns - rollout.values
    columns = torch.stack((rollout.advantages, rollout.returns, rollout.values, residual), dim=-1).double()
    rows = torch.where(rollout.valid[..., None], columns, 0.0).flatten(0, 1)
    every = reduce or (lambda x, _: x)
    count = every(rollout.valid.sum().double(), "sum")
    mean = every(rows.sum(dim=0), "sum") / count
    centred = torch.where(rollout.valid.flatten()[:, None], rows - mean, 0.0)
    variance = every(centred.square().sum(dim=0), "sum") / count
    peak = every(rows.abs().amax(dim=0), "max")
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
