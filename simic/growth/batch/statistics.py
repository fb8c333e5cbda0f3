"""What one training epoch says about each host and each seed."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

MIN_GRADIENT_NORM = 1e-8  # below, a gradient ratio is 0
MAX_GRADIENT_RATIO = 10.0
EXPLODING_CLIPS = 10.0  # a norm above this many times the clip is unhealthy (ours: tied to the clip, not absolute)


@dataclass(frozen=True)
class TrainStats:
    """One training epoch. Norms are means over minibatches, before clipping; seeds that did not run have NaN and False.
    ``finite``: the loss and the gradients and parameters of the host all are.
    """

    loss: Tensor  # [E] mean cross-entropy in nats
    accuracy: Tensor  # [E] points
    host_grad_norm: Tensor  # [E]
    seed_grad_norm: Tensor  # [E, K]
    gradient_ratio: Tensor  # [E, K] per-parameter intensity, seed over host
    gradient_healthy: Tensor  # [E, K] bool: finite in every minibatch and not exploding
    finite: Tensor  # [E] bool

    @classmethod
    def unmeasured(cls, envs: int, slots: int, device: torch.device) -> Self:
        """Before the first epoch."""
        host, seed = (torch.full(shape, torch.nan, device=device) for shape in ((envs,), (envs, slots)))
        return cls(host, host, host, seed, seed, seed.isfinite(), host.isfinite())


@dataclass(frozen=True)
class SeedNorms:
    """Gradient norms ``[n, G]`` of the seeds of one slot and blueprint in hosts ``[G]``; ``params`` of each."""

    slot: int
    hosts: Tensor
    norms: Tensor
    params: int


def train_statistics(
    loss: Tensor,
    accuracy: Tensor,
    host_norms: Tensor,
    host_params: int,
    seeds: list[SeedNorms],
    slots: int,
    clip: float,
) -> TrainStats:
    """From per-minibatch loss (nats), accuracy (0–1) and host norms ``[n, E]``, and the seeds' norms."""
    host = column_means(host_norms)
    norm = host.new_full((len(host), slots), torch.nan)
    ratio = norm.clone()
    for item in seeds:
        mean = column_means(item.norms)
        norm[item.hosts, item.slot] = mean
        ratio[item.hosts, item.slot] = gradient_ratio(mean, item.params, host[item.hosts], host_params)
    return TrainStats(
        loss=column_means(loss),
        accuracy=100 * column_means(accuracy),
        host_grad_norm=host,
        seed_grad_norm=norm,
        gradient_ratio=ratio,
        gradient_healthy=norm <= EXPLODING_CLIPS * clip,  # NaN and Inf in any minibatch reach the mean, and fail
        finite=loss.isfinite().all(0) & host.isfinite(),
    )


def column_means(values: Tensor) -> Tensor:
    """Mean over the first dimension, ``[n, R] → [R]``, that rounds alike however many columns there are.

    torch's own reduction over a leading dimension takes columns by vector registers and the rest apart, in another
    order of addition; over contiguous rows it does not.
    """
    return values.T.contiguous().mean(1)


def gradient_ratio(seed: Tensor, seed_params: int, host: Tensor, host_params: int) -> Tensor:
    """ρ = (‖g_seed‖/√n_seed) / (‖g_host‖/√n_host + 1e-8), at most 10; 0 where either norm vanishes."""
    ratio = (seed / seed_params**0.5) / (host / host_params**0.5 + MIN_GRADIENT_NORM)
    vanished = (seed < MIN_GRADIENT_NORM) | (host < MIN_GRADIENT_NORM)
    return torch.where(vanished, 0.0, ratio.clamp(max=MAX_GRADIENT_RATIO))
