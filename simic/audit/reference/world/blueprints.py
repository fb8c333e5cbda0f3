"""What a seed can be, a second time, by family; in the order of their action index (docs/metrics.md, README)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from simic.audit.reference.world.parts import (
    EPS,
    Entry,
    Part,
    Values,
    affine,
    conv,
    convolved,
    dense,
    group_normed,
    linear,
    rectified,
)

Shape = tuple[int, ...]
SQUEEZED_BIAS = 3.0  # sigmoid(3) ≈ 0.95


def map_norm(shape: Shape) -> Part:
    """x + tanh(w) (GN(x) − x), w = 0."""

    def run(v: Values, x: Tensor) -> Tensor:
        return x + torch.tanh(v["weight"]) * (group_normed(v, "norm", x) - x)

    return Part((Entry("weight", (1,), constant=0.0), *affine("norm", shape[0])), run, 0, ("weight",))


def squeeze_excitation(shape: Shape) -> Part:
    """x · σ(W₂ relu(W₁ mean x) + b), W₂ = 0, b = 3."""
    channels, reduced = shape[0], max(1, shape[0] // 4)

    def run(v: Values, x: Tensor) -> Tensor:
        scale = linear(v, "excite", F.relu(linear(v, "squeeze", x.mean((2, 3)))))
        return x * torch.sigmoid(scale)[:, :, None, None]

    excite = (
        Entry("excite.weight", (channels, reduced), constant=0.0),
        Entry("excite.bias", (channels,), constant=SQUEEZED_BIAS),
    )
    return Part((*dense("squeeze", channels, reduced, bias=False), *excite), run, 4 * channels * reduced)


def depthwise(shape: Shape) -> Part:
    """x + relu(GN(1×1(3×3 per channel x)))."""
    channels, height, width = shape

    def run(v: Values, x: Tensor) -> Tensor:
        mixed = convolved(v, "pointwise", convolved(v, "depthwise", x, per_channel=True))
        return x + rectified(group_normed(v, "norm", mixed))

    entries = (conv("depthwise", 1, channels, 3), conv("pointwise", channels, channels, 1), *affine("norm", channels))
    flops = 2 * height * width * (9 * channels + channels**2)
    return Part(entries, run, flops, ("norm.weight", "norm.bias"))


def bottleneck(shape: Shape) -> Part:
    """x + GN(up(relu(3×3(relu(down x))))), up = 0."""
    channels, height, width = shape
    narrow = max(8, channels // 4)

    def run(v: Values, x: Tensor) -> Tensor:
        inner = F.relu(convolved(v, "conv", F.relu(convolved(v, "down", x))))
        return x + group_normed(v, "norm", convolved(v, "up", inner))

    entries = (
        conv("down", channels, narrow, 1),
        conv("conv", narrow, narrow, 3),
        conv("up", narrow, channels, 1, 0.0),
        *affine("norm", channels),
    )
    flops = 2 * height * width * (2 * channels * narrow + 9 * narrow**2)
    return Part(entries, run, flops, ("up.weight",))


def conv_small(shape: Shape) -> Part:
    """x + relu(GN(1×1 x)), the convolution 0."""
    return _convolutions(shape, ("branch",), 1, 0.0, ("branch.conv.weight",))


def conv_light(shape: Shape) -> Part:
    """x + relu(GN(3×3 x))."""
    return _convolutions(shape, ("branch",), 3, None, ("branch.norm.weight", "branch.norm.bias"))


def conv_heavy(shape: Shape) -> Part:
    """x + two of relu(GN(3×3 ·)) in a row."""
    return _convolutions(shape, ("first", "second"), 3, None, ("second.norm.weight", "second.norm.bias"))


def _convolutions(
    shape: Shape, names: tuple[str, ...], kernel: int, constant: float | None, closing: tuple[str, ...]
) -> Part:
    channels, height, width = shape

    def run(v: Values, x: Tensor) -> Tensor:
        h = x
        for name in names:
            h = rectified(group_normed(v, f"{name}.norm", convolved(v, f"{name}.conv", h)))
        return x + h

    entries = [
        entry
        for name in names
        for entry in (conv(f"{name}.conv", channels, channels, kernel, constant), *affine(f"{name}.norm", channels))
    ]
    flops = 2 * height * width * kernel**2 * channels**2 * len(names)
    return Part(tuple(entries), run, flops, closing)


def vector_norm(shape: Shape) -> Part:
    """x + tanh(w) (LN(x) − x), w = 0."""

    def run(v: Values, x: Tensor) -> Tensor:
        normed = F.layer_norm(x, (shape[-1],), v["norm.weight"], v["norm.bias"], EPS)
        return x + torch.tanh(v["weight"]) * (normed - x)

    return Part((Entry("weight", (1,), constant=0.0), *affine("norm", shape[-1])), run, 0, ("weight",))


def low_rank(shape: Shape) -> Part:
    """x + up(down x) of rank 8, up = 0."""
    width, rank = shape[-1], 8

    def run(v: Values, x: Tensor) -> Tensor:
        return x + linear(v, "up", linear(v, "down", x))

    entries = (*dense("down", width, rank, bias=False), *dense("up", rank, width, zero=True, bias=False))
    return Part(entries, run, 4 * width * rank, ("up.weight",))


def residual_mlp(factor: int) -> Callable[[Shape], Part]:
    """x + W₂ gelu(W₁ x) with a hidden layer ``factor`` times as wide, W₂ = 0."""

    def build(shape: Shape) -> Part:
        width, hidden = shape[-1], factor * shape[-1]

        def run(v: Values, x: Tensor) -> Tensor:
            return x + linear(v, "second", F.gelu(linear(v, "first", x)))

        entries = (*dense("first", width, hidden), *dense("second", hidden, width, zero=True))
        return Part(entries, run, 4 * width * hidden, ("second.weight", "second.bias"))

    return build


def adapter_low_rank(shape: Shape) -> Part:
    """x + up(down x), both 1×1, of rank 4, up = 0."""
    return _adapter(shape, 4, lambda x: x)


def adapter_bottleneck(shape: Shape) -> Part:
    """x + up(relu(down x)), both 1×1, up = 0."""
    return _adapter(shape, max(8, shape[0] // 4), F.relu)


def _adapter(shape: Shape, narrow: int, between: Callable[[Tensor], Tensor]) -> Part:
    channels, height, width = shape

    def run(v: Values, x: Tensor) -> Tensor:
        return x + convolved(v, "up", between(convolved(v, "down", x)))

    entries = (conv("down", channels, narrow, 1), conv("up", narrow, channels, 1, 0.0))
    return Part(entries, run, 4 * height * width * channels * narrow, ("up.weight",))


def adapter_conv(shape: Shape) -> Part:
    """x + 3×3 x, the convolution 0."""
    channels, height, width = shape

    def run(v: Values, x: Tensor) -> Tensor:
        return x + convolved(v, "conv", x)

    return Part((conv("conv", channels, channels, 3, 0.0),), run, 18 * height * width * channels**2, ("conv.weight",))


def gate(shape: Shape) -> Part:
    """σ(W₂ relu(W₁ mean x)): one amplitude for each sample."""
    channels = shape[0]
    units = max(8, channels // 4)

    def run(v: Values, x: Tensor) -> Tensor:
        pooled = x.mean((2, 3)) if x.dim() == 4 else x
        return torch.sigmoid(linear(v, "out", F.relu(linear(v, "hidden", pooled))))

    return Part((*dense("hidden", channels, units), *dense("out", units, 1)), run, 2 * channels * units + 2 * units)


BLUEPRINTS: dict[str, dict[str, Callable[[Shape], Part]]] = {
    "cnn": {
        "norm": map_norm,
        "attention": squeeze_excitation,
        "depthwise": depthwise,
        "bottleneck": bottleneck,
        "conv_small": conv_small,
        "conv_light": conv_light,
        "conv_heavy": conv_heavy,
    },
    "mlp": {"norm": vector_norm, "lora": low_rank, "mlp_small": residual_mlp(2), "mlp": residual_mlp(4)},
    "adapted_cnn": {"lora": adapter_low_rank, "bottleneck": adapter_bottleneck, "conv": adapter_conv},
}
