"""Layers that hosts and blueprints share: the group rule of GroupNorm, and a ReLU that a zero branch wakes up from."""

from torch import Tensor, nn

from simic.errors import SimicError

GROUP_CHOICES = (32, 16, 8, 4, 2)
MIN_CHANNELS_PER_GROUP = 16
MIN_NORM_VALUES = 8


class OpenReLU(nn.Module):
    """max(x, 0) with the subgradient 1 at 0.

    A branch that ends in norm → ReLU and starts as zeros has every pre-activation exactly at 0, where ``relu`` passes
    no gradient: it would stay zero for ever. ``clamp`` passes it; values are the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)


def norm_groups(channels: int) -> int:
    """The largest of 32, 16, 8, 4, 2 that divides ``channels`` and leaves at least 16 per group, else 1."""
    for groups in GROUP_CHOICES:
        if channels % groups == 0 and channels // groups >= MIN_CHANNELS_PER_GROUP:
            return groups
    return 1


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with the group rule; no running statistics, so each host of a population is on its own."""
    return nn.GroupNorm(norm_groups(channels), channels)


def check_norm(shape: tuple[int, ...], where: str) -> None:
    """Refuse a norm over too few values: it would output little but its bias, whatever the input."""
    channels, *pixels = shape
    values = channels // norm_groups(channels) if pixels else channels
    for size in pixels:
        values *= size
    if values < MIN_NORM_VALUES:
        raise SimicError(
            f"{where} has shape {shape}: a norm there is over {values} values, at least {MIN_NORM_VALUES} are needed; "
            "use a wider or shallower host or a larger input"
        )
