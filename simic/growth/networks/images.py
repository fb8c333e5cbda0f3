"""Hosts for images: convolutional blocks, or a multi-layer perceptron over the pixels."""

import math
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from simic.growth.networks.family import Anatomy, Shape, host_family
from simic.growth.networks.layers import Samplewise, check_norm, group_norm
from simic.params import Host

MIN_POOLED_PIXELS = 2


@dataclass(frozen=True)
class ConvPreset:
    """Channels of the blocks and the size of their kernels."""

    widths: tuple[int, ...]
    kernel_size: int = 3


# baseline: three blocks from base 8; deep: five blocks. impaired: too weak alone, so growth pays: it mixes
# no neighbouring pixels (digits, 25 epochs, 3 hosts each: 27 % alone, 68 % with a bottleneck in slot 0).
CNN_PRESETS = {
    "baseline": ConvPreset((8, 16, 32)),
    "deep": ConvPreset((8, 16, 32, 64, 128)),
    "impaired": ConvPreset((4, 8, 16), kernel_size=1),
}
MLP_PRESETS = {"baseline": (64, 64, 64), "deep": (64, 64, 64, 64, 64)}


class ConvBlock(Samplewise):
    """Convolution (no bias) → GroupNorm → max pooling, if ``pool`` → ReLU; ``[B, C, H, W]``.

    Maximum and ReLU commute; pooled first, the ReLU meets a quarter of the values.
    """

    def __init__(self, channels: int, width: int, kernel_size: int, pool: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = group_norm(width)
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.pool(self.norm(self.conv(x))))


class ConvHead(Samplewise):
    """Global average pool → linear; ``[B, C, H, W] → [B, classes]``."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((-2, -1)))


@host_family("adapted_cnn", presets=tuple(CNN_PRESETS))  # whose blueprints are adapters
@host_family("cnn", presets=tuple(CNN_PRESETS))
def cnn(host: Host, input_shape: Shape, classes: int) -> Anatomy:
    """Build blocks that pool while at least 2 × 2 pixels remain: a norm after the last needs values to be over."""
    preset = CNN_PRESETS[host.preset]
    widths, kernel = host.widths or preset.widths, host.kernel_size or preset.kernel_size
    channels, height, width = input_shape
    segments, shapes = [], []
    for slot, out in enumerate(widths):
        check_norm((out, height, width), f"host cnn, block {slot}")
        pool = min(height, width) >= 2 * MIN_POOLED_PIXELS
        segments.append(partial(ConvBlock, channels, out, kernel, pool))
        height, width = (height // 2, width // 2) if pool else (height, width)
        channels = out
        shapes.append((out, height, width))
    config = host.model_copy(update={"widths": widths, "kernel_size": kernel})
    return Anatomy(tuple(segments), partial(ConvHead, channels, classes), tuple(shapes), config)


class LinearBlock(Samplewise):
    """Linear → ReLU of a flattened image, ``[B, …] → [B, D]``."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, width)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x.flatten(1)))


@host_family("mlp", presets=tuple(MLP_PRESETS))
def mlp(host: Host, input_shape: Shape, classes: int) -> Anatomy:
    """Build one layer per slot, then a linear classifier."""
    widths = host.widths or MLP_PRESETS[host.preset]
    inputs = (math.prod(input_shape), *widths[:-1])
    segments = tuple(partial(LinearBlock, *sizes) for sizes in zip(inputs, widths, strict=True))
    config = host.model_copy(update={"widths": widths})
    return Anatomy(segments, partial(nn.Linear, widths[-1], classes), tuple((size,) for size in widths), config)
