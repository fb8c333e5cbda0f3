"""Hosts for images: convolutional blocks, or a multi-layer perceptron over the pixels."""

import math
from collections import OrderedDict
from functools import partial

from torch import Tensor, nn

from simic.growth.networks.family import Anatomy, Shape, host_family
from simic.growth.networks.layers import (
    FlatLinear,
    Samplewise,
    check_norm,
    group_norm,
)
from simic.params import Host

# Height and width of a map are at least so many pixels after pooling.
MIN_POOLED_PIXELS = 2

# Channels of the blocks, size of their kernels. impaired: too weak alone, so growth pays: it mixes no neighbours
# (digits, 25 epochs, 3 hosts each: 27 % alone, 68 % with a bottleneck in slot 0).
CNN_PRESETS = {
    "baseline": ((8, 16, 32), 3),
    "deep": ((8, 16, 32, 64, 128), 3),
    "impaired": ((4, 8, 16), 1),
}
MLP_PRESETS = {"baseline": (64, 64, 64), "deep": (64, 64, 64, 64, 64)}


def conv_block(channels: int, width: int, kernel_size: int, pool: bool) -> nn.Module:
    """Make convolution (no bias) → GroupNorm → max pooling → ReLU; ``[B, C, H, W]``.

    Args:
        channels: of the input.
        width: channels of the output.
        kernel_size: of the convolution, odd.
        pool: whether maps are halved.
    """
    # Maximum and ReLU commute; pooled first, the ReLU meets a quarter of the values.
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(channels, width, kernel_size, padding=kernel_size // 2, bias=False),
        "norm": group_norm(width),
        "pool": nn.MaxPool2d(2) if pool else nn.Identity(),
        "relu": nn.ReLU(),
    }
    return nn.Sequential(OrderedDict(layers))


class ConvHead(Samplewise):
    """Global average pool → linear; ``[B, C, H, W] → [B, classes]``."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((-2, -1)))


@host_family("cnn", presets=tuple(CNN_PRESETS))
def cnn(host: Host, input_shape: Shape, classes: int) -> Anatomy:
    """Build blocks that pool while at least 2 × 2 pixels remain: a norm after the last needs values to be over.

    Args:
        host: its params; widths and kernel size in place of the preset's, if any.
        input_shape: ``(C, H, W)``.
        classes: number of logits.
    """
    preset_widths, preset_kernel = CNN_PRESETS[host.preset]
    widths = host.widths or preset_widths
    kernel = host.kernel_size or preset_kernel
    channels, height, width = input_shape
    segments = []
    shapes = []
    for slot, out in enumerate(widths):
        # A block has a norm, and pools while enough pixels are left.
        check_norm((out, height, width), f"host cnn, block {slot}")
        pool = min(height, width) >= 2 * MIN_POOLED_PIXELS
        segments.append(partial(conv_block, channels, out, kernel, pool))
        if pool:
            height //= 2
            width //= 2
        channels = out
        shapes.append((out, height, width))
    # What the preset decided is recorded, so that the network outlives the preset.
    config = host.model_copy(update={"widths": widths, "kernel_size": kernel})
    return Anatomy(
        tuple(segments),
        partial(ConvHead, channels, classes),
        tuple(shapes),
        config,
    )


@host_family("mlp", presets=tuple(MLP_PRESETS))
def mlp(host: Host, input_shape: Shape, classes: int) -> Anatomy:
    """Build one layer per slot, then a linear classifier.

    Args:
        host: its params; widths in place of the preset's, if any.
        input_shape: ``(C, H, W)``.
        classes: number of logits.
    """
    widths = host.widths or MLP_PRESETS[host.preset]
    # Pixels of all channels are one vector.
    inputs = (math.prod(input_shape), *widths[:-1])
    segments = tuple(
        partial(FlatLinear, *sizes, relu=True) for sizes in zip(inputs, widths, strict=True)
    )
    config = host.model_copy(update={"widths": widths})
    return Anatomy(
        segments,
        partial(nn.Linear, widths[-1], classes),
        tuple((size,) for size in widths),
        config,
    )
