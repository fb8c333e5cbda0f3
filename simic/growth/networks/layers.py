"""Layers that hosts and blueprints share."""

import math

import torch
from torch import Tensor, nn

from simic.errors import SimicError

# Of a group norm, the most groups first.
GROUP_CHOICES = (32, 16, 8, 4, 2)
MIN_CHANNELS_PER_GROUP = 16
# Over fewer values a norm would output little but its bias.
MIN_NORM_VALUES = 8
ATTENTION_HEADS = 4


class Samplewise(nn.Module):
    """A module whose forward looks at each sample of the first dimension alone, and at parameters through torch's
    layers or ``per_sample``: samples of many networks may lie there one after the other (``kernels.stacked``).

    Only a class that names it among its own bases is taken at its word; one derived from such a class is not.
    """


def per_sample(parameter: Tensor, x: Tensor) -> Tensor:
    """Match a scalar parameter ``[1]`` to samples ``x``; of R networks ``[R, 1]``, one for each of ``[R · B, …]``."""
    if parameter.shape[-1] != 1 or parameter.dim() > 2:
        raise SimicError(
            f"per_sample of a parameter {tuple(parameter.shape)}: must be one number per network"
        )
    # One network: the parameter broadcasts by itself.
    if parameter.numel() == 1:
        return parameter
    of_rows = parameter.repeat_interleave(len(x) // len(parameter), 0)
    return of_rows.view(-1, *[1] * (x.dim() - 1))


class OpenReLU(Samplewise):
    """max(x, 0) with the subgradient 1 at 0.

    A branch that ends in norm → ReLU and starts as zeros has every pre-activation exactly at 0, where ``relu`` passes
    no gradient: it would stay zero for ever. ``clamp`` passes it; values are the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)


def norm_groups(channels: int) -> int:
    """Choose the largest of 32, 16, 8, 4, 2 that divides ``channels`` and leaves at least 16 per group, else 1."""
    for groups in GROUP_CHOICES:
        if channels % groups == 0 and channels // groups >= MIN_CHANNELS_PER_GROUP:
            return groups
    return 1


def group_norm(channels: int) -> nn.GroupNorm:
    """Make a GroupNorm by the group rule; no running statistics, so each host of a population is on its own."""
    return nn.GroupNorm(norm_groups(channels), channels)


def check_norm(shape: tuple[int, ...], name: str) -> None:
    """Refuse a norm over too few values: it would output little but its bias, whatever the input."""
    channels, *pixels = shape
    # A group norm is over pixels and channels of a group, a layer norm over all features.
    values = math.prod(pixels) * channels // (norm_groups(channels) if pixels else 1)
    if values < MIN_NORM_VALUES:
        raise SimicError(
            f"{name} has shape {shape}: a norm there is over {values} values, at least {MIN_NORM_VALUES} are needed; "
            "use a wider or shallower host or a larger input"
        )


class FlatLinear(Samplewise):
    """Linear of a flattened sample, with a ReLU if ``relu``; ``[B, …] → [B, width]``."""

    def __init__(self, features: int, width: int, relu: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(features, width)
        self.activation = nn.ReLU() if relu else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x.flatten(1)))


class CausalAttention(Samplewise):
    """Multi-head self-attention of each position to itself and those before it: 4D² + 4D parameters; ``[B, L, D]``.

    Written out as matrix products: they are counted exactly on every device, and torch's fused kernel was no faster
    here (docs/history/decisions.md).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % ATTENTION_HEADS:
            raise SimicError(
                f"attention over {width} features: must be a multiple of its {ATTENTION_HEADS} heads"
            )
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        # Of each head [B, heads, L, d]: softmax(q kᵀ / √d) v over the past.
        q, k, v = (
            part.unflatten(-1, (ATTENTION_HEADS, -1)).transpose(-3, -2)
            for part in self.qkv(x).chunk(3, -1)
        )
        # A position looks at itself and at those before it.
        length = q.shape[-2]
        past = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~past, -torch.inf).softmax(-1)
        return self.out((weights @ v).transpose(-3, -2).flatten(-2))
