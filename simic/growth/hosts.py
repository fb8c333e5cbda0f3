"""Hosts: the networks to be grown, as an ordered list of segments with a slot after each, and a classifier."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from simic.errors import SimicError
from simic.growth.blueprints import count_flops, count_params
from simic.growth.layers import check_norm, group_norm
from simic.params import Host

Shape = tuple[int, ...]
Builder = Callable[[], nn.Module]


@dataclass(frozen=True)
class Preset:
    """Widths of the segments; ``kernel_size`` of a cnn; ``linear``: an mlp without nonlinearities that sees only the
    mean of the image over its rows.
    """

    widths: tuple[int, ...]
    kernel_size: int = 3
    linear: bool = False


# baseline: facts §3.1, three blocks from base 8; deep: five blocks. impaired: too weak alone, so growth pays: a cnn
# that mixes no neighbouring pixels (digits, 25 epochs, 3 hosts each: 27 % alone, 68 % with a bottleneck in slot 0), an
# mlp that is one narrow linear map of a blurred image (50 % alone, 59 % with an mlp_small in slot 0).
PRESETS: dict[str, dict[str, Preset]] = {
    "cnn": {
        "baseline": Preset((8, 16, 32)),
        "deep": Preset((8, 16, 32, 64, 128)),
        "impaired": Preset((4, 8, 16), kernel_size=1),
    },
    "mlp": {
        "baseline": Preset((64, 64, 64)),
        "deep": Preset((64, 64, 64, 64, 64)),
        "impaired": Preset((16, 16, 16), linear=True),
    },
}
MIN_POOLED_PIXELS = 2


@dataclass(frozen=True)
class HostSpec:
    """How to build one host: fresh plain modules from ``segments`` and ``head``, run one after another.

    ``slot_shapes[k]`` is the feature shape per sample after segment k, where slot k is. ``params`` and
    ``flops_per_sample`` are exact counts of the bare host (``blueprints.count_flops``).
    """

    family: str
    preset: str
    input_shape: Shape
    classes: int
    segments: tuple[Builder, ...]
    head: Builder
    slot_shapes: tuple[Shape, ...]
    params: int
    flops_per_sample: int
    config: Host  # with widths and kernel size filled in, so that it names the network whatever the presets become

    @property
    def slots(self) -> int:
        """K."""
        return len(self.segments)


class ConvBlock(nn.Module):
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


class ConvHead(nn.Module):
    """Global average pool → linear; ``[B, C, H, W] → [B, classes]``."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((-2, -1)))


class LinearBlock(nn.Module):
    """Linear → ReLU (or linear alone); flattens an image, averaged over its rows if ``linear``; ``[B, …] → [B, D]``."""

    def __init__(self, features: int, width: int, linear: bool) -> None:
        super().__init__()
        self.blurred = linear
        self.linear = nn.Linear(features, width)
        self.activation = nn.Identity() if linear else nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if self.blurred and x.dim() > 2:
            x = x.mean(2)
        return self.activation(self.linear(x.flatten(1)))


def build_host(host: Host, input_shape: Shape, classes: int) -> HostSpec:
    """The host of ``params`` for inputs ``(C, H, W)``; SimicError names what does not fit."""
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise SimicError(f"input shape {input_shape}: must be (channels, height, width), each at least 1")
    if classes < 2:
        raise SimicError(f"classes = {classes}: must be at least 2")
    preset = PRESETS[host.family][host.preset]
    widths = host.widths or preset.widths
    if host.family == "cnn":
        segments, shapes, head = _cnn(widths, host.kernel_size or preset.kernel_size, input_shape, classes)
    else:
        if host.kernel_size is not None:
            raise SimicError(f"train.host.kernel_size = {host.kernel_size}: must be null for family mlp")
        segments, shapes, head = _mlp(widths, preset.linear, input_shape, classes)
    for slot, shape in enumerate(shapes):
        check_norm(shape, f"host {host.family}/{host.preset}, slot {slot}")
    params, flops = _count(segments, head, shapes, input_shape)
    kernel = host.kernel_size or preset.kernel_size if host.family == "cnn" else None
    config = host.model_copy(update={"widths": widths, "kernel_size": kernel})
    return HostSpec(host.family, host.preset, input_shape, classes, segments, head, shapes, params, flops, config)


def _cnn(
    widths: tuple[int, ...], kernel: int, shape: Shape, classes: int
) -> tuple[tuple[Builder, ...], tuple[Shape, ...], Builder]:
    """Blocks that pool while at least 2 × 2 pixels remain: a norm after the last needs values to be over."""
    channels, height, width = shape
    segments, shapes = [], []
    for slot, out in enumerate(widths):
        check_norm((out, height, width), f"host cnn, block {slot}")
        pool = min(height, width) >= 2 * MIN_POOLED_PIXELS
        segments.append(partial(ConvBlock, channels, out, kernel, pool))
        height, width = (height // 2, width // 2) if pool else (height, width)
        channels = out
        shapes.append((out, height, width))
    return tuple(segments), tuple(shapes), partial(ConvHead, channels, classes)


def _mlp(
    widths: tuple[int, ...], linear: bool, shape: Shape, classes: int
) -> tuple[tuple[Builder, ...], tuple[Shape, ...], Builder]:
    features = shape[0] * shape[2] * (1 if linear else shape[1])
    inputs = (features, *widths[:-1])
    segments = tuple(partial(LinearBlock, *sizes, linear) for sizes in zip(inputs, widths, strict=True))
    return segments, tuple((width,) for width in widths), partial(nn.Linear, widths[-1], classes)


def _count(segments: tuple[Builder, ...], head: Builder, shapes: tuple[Shape, ...], inputs: Shape) -> tuple[int, int]:
    params = flops = 0
    for build, shape in zip((*segments, head), (inputs, *shapes), strict=True):
        with torch.device("meta"):
            module = build()
        params += count_params(module)
        flops += count_flops(module, shape)
    return params, flops
