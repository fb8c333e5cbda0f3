"""Measurements of each host: loss and right answers of a batch, gradient norms and means of a training epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

FEW_CLASSES = 16  # up to here class by class over long rows: torch's softmax along 2 classes takes four times as long
MIN_GRADIENT_NORM = 1e-8  # below, a gradient ratio is 0
MAX_GRADIENT_RATIO = 10.0
EXPLODING_CLIPS = 10.0  # a norm above so many times the clip is unhealthy


@dataclass(frozen=True)
class TrainStats:
    """One training epoch. Norms are means over minibatches, before clipping; seeds that did not run have NaN and
    False.
    """

    loss: Tensor  # [E] mean cross-entropy in nats
    accuracy: Tensor  # [E] points
    host_grad_norm: Tensor  # [E]
    seed_grad_norm: Tensor  # [E, K]
    gradient_ratio: Tensor  # [E, K] per-parameter intensity, seed over host
    gradient_healthy: Tensor  # [E, K] bool: finite in every minibatch and not exploding
    finite: Tensor  # [E] bool: the loss, and the gradients and parameters of the host

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Join the statistics of several groups of hosts."""
        return cls(
            **{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])}
        )

    @classmethod
    def unmeasured(cls, envs: int, slots: int, device: torch.device) -> Self:
        """Make the statistics before the first epoch: nothing is measured.

        Args:
            envs: How many hosts, E.
            slots: Of each, K.
            device: Where they are.
        """
        host = torch.full((envs,), torch.nan, device=device)
        seed = torch.full((envs, slots), torch.nan, device=device)
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
    """Summarise an epoch of n minibatches.

    Args:
        loss: Nats, ``[n, E]``.
        accuracy: 0 to 1, ``[n, E]``.
        host_norms: Gradient norms before clipping, ``[n, E]``.
        host_params: Parameters of a host.
        seeds: Norms of the seeds that trained.
        slots: How many a host has.
        clip: Norm to which gradients are clipped.
    """
    # Seeds that did not train stay NaN: not measured is not 0.
    host = column_means(host_norms)
    norm = host.new_full((len(host), slots), torch.nan)
    ratio = norm.clone()
    for item in seeds:
        mean = column_means(item.norms)
        norm[item.hosts, item.slot] = mean
        ratio[item.hosts, item.slot] = gradient_ratio(
            mean, item.params, host[item.hosts], host_params
        )
    # NaN and Inf of any minibatch reach the mean, and fail every comparison.
    return TrainStats(
        loss=column_means(loss),
        accuracy=100 * column_means(accuracy),
        host_grad_norm=host,
        seed_grad_norm=norm,
        gradient_ratio=ratio,
        gradient_healthy=norm <= EXPLODING_CLIPS * clip,
        finite=loss.isfinite().all(0) & host.isfinite(),
    )


def column_means(values: Tensor) -> Tensor:
    """Average over the first dimension, ``[n, R] → [R]``, rounding alike however many columns there are.

    torch's own reduction over a leading dimension takes columns by vector registers and the rest apart, in another
    order of addition; over contiguous rows it does not.
    """
    return values.T.contiguous().mean(1)


def gradient_ratio(seed: Tensor, seed_params: int, host: Tensor, host_params: int) -> Tensor:
    """Compute ρ = (‖g_seed‖/√n_seed) / (‖g_host‖/√n_host + 1e-8), at most 10; 0 where either norm vanishes.

    Args:
        seed: Gradient norms of seeds, ``[G]``.
        seed_params: Parameters of such a seed, n_seed.
        host: Gradient norms of their hosts, ``[G]``.
        host_params: Parameters of a host, n_host.
    """
    # Per parameter, so that a small seed can be as busy as its large host.
    ratio = (seed / seed_params**0.5) / (host / host_params**0.5 + MIN_GRADIENT_NORM)
    vanished = (seed < MIN_GRADIENT_NORM) | (host < MIN_GRADIENT_NORM)
    return torch.where(vanished, 0.0, ratio.clamp(max=MAX_GRADIENT_RATIO))


def score(logits: Tensor, y: Tensor, lacking: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute loss and right answers of each sample; a network with non-finite logits is never right.

    Args:
        logits: ``[R, B, classes]``; of sequences ``[R, B, L, classes]``.
        y: Labels ``[R, B]``; of sequences ``[R, B, L]``.
        lacking: Classes that a network's task does not have and that are no answers, bool ``[R, classes]``.

    Returns:
        Loss in nats and whether the answer is right, ``[R, B]``; of sequences the means over their tokens, both float.
    """
    # torch's cross-entropy is slow for few classes and many short rows.
    if y.dim() == 2 and logits.shape[-1] <= FEW_CLASSES:
        loss, right = _FewClasses.apply(logits, y, lacking)  # pyright: ignore[reportGeneralTypeIssues]
        return loss, right
    # Tasks of a suite differ in their classes; what a task lacks gets probability 0.
    finite = logits.detach().isfinite().all(-1)
    if lacking is not None:
        lacking = lacking.view(len(lacking), *[1] * (logits.dim() - 2), -1)
        logits = logits.masked_fill(lacking, -torch.inf)
    flat_loss = F.cross_entropy(logits.flatten(0, -2), y.reshape(-1), reduction="none")
    loss = flat_loss.view(y.shape)
    right = (logits.detach().argmax(-1) == y) & finite
    if y.dim() == 2:
        return loss, right
    return loss.flatten(2).mean(2), right.flatten(2).float().mean(2)


class _FewClasses(Function):
    """``score`` of samples with one answer each, on ``[classes, R, B]``."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        y: Tensor,
        lacking: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        # The likeliest class; of equals the first is the answer.
        by_class = logits.permute(2, 0, 1).contiguous()
        finite = by_class.amax(0).isfinite() & by_class.amin(0).isfinite()
        if lacking is not None:
            by_class = by_class.masked_fill(lacking.T[:, :, None], -torch.inf)
        best = by_class.amax(0)
        logit = by_class.gather(0, y[None])[0]
        # Where classes tie, equality alone would call several answers right.
        right = logit == best
        if y.device.type != "cpu" or int((by_class == best).sum()) != y.numel():
            right = by_class.argmax(0) == y

        # −log softmax. sum() adds in another order at the end of a row: no host would be the same alone.
        weight = (by_class - best).exp_()
        total = weight[0].clone()
        for class_weight in weight[1:]:
            total += class_weight
        loss = total.log() + best - logit
        ctx.save_for_backward(weight.div_(total), y)
        right = right & finite
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        probability, y = ctx.saved_tensors
        # p − 1 for the answer, p for the other classes.
        minus_one = torch.full_like(probability[:1], -1.0)
        gradient = probability.scatter_add(0, y[None], minus_one)
        return (gradient * grads[0]).permute(1, 2, 0).contiguous(), None, None
