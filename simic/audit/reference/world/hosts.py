"""The hosts a second time: segments with a slot after each, and a head."""

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from simic.audit.reference.world import tables
from simic.audit.reference.world.blueprints import BLUEPRINTS, gate
from simic.audit.reference.world.parts import Part, Values, affine, conv, convolved, dense, group_normed, linear
from simic.audit.reference.world.refusal import NoReference
from simic.params import Host

# Widths and size of the kernels; widths alone.
CONVOLUTIONAL = {"baseline": ((8, 16, 32), 3), "deep": ((8, 16, 32, 64, 128), 3), "impaired": ((4, 8, 16), 1)}
VECTOR = {"baseline": (64,) * 3, "deep": (64,) * 5}
SMALLEST_MAP = 2  # pixels a side, below which nothing is pooled


@dataclass(frozen=True)
class Anatomy:
    """``segments`` and ``head``; per slot the shape of its features, the blueprints in their order and the gate."""

    segments: tuple[Part, ...]
    head: Part
    shapes: tuple[tuple[int, ...], ...]
    blueprints: tuple[dict[str, Part], ...]
    gates: tuple[Part, ...]

    @property
    def slots(self) -> int:
        """How many."""
        return len(self.segments)

    @property
    def params(self) -> int:
        """Of the bare host."""
        return sum(part.params for part in (*self.segments, self.head))

    @property
    def flops(self) -> int:
        """Of the bare host, for one sample."""
        return sum(part.flops for part in (*self.segments, self.head))


def anatomy(host: Host, shape: tuple[int, ...], classes: int) -> Anatomy:
    """The host of the params; NoReference where there is no second implementation of it."""
    known = {"cnn": CONVOLUTIONAL, "adapted_cnn": CONVOLUTIONAL, "mlp": VECTOR, "tables": ("baseline",)}
    if host.family not in known or host.preset not in known[host.family]:
        raise NoReference(
            f"train.host = {host.family}/{host.preset}: the reference has only hosts of {', '.join(known)} with the "
            f"presets {', '.join(CONVOLUTIONAL)}"
        )
    if host.family == "tables":
        segments, head, shapes = tables.host(shape, classes, host.widths or tables.WIDTHS)
        kinds, seen = tables.SEEDS, [(math.prod(shape), *place) for place in shapes]
    else:
        segments, head, shapes = (_vector if host.family == "mlp" else _convolutional)(host, shape, classes)
        kinds, seen = BLUEPRINTS[host.family], shapes
    blueprints = [{name: build(place) for name, build in kinds.items()} for place in seen]
    return Anatomy(tuple(segments), head, tuple(shapes), tuple(blueprints), tuple(gate(place) for place in shapes))


Body = tuple[list[Part], Part, list[tuple[int, ...]]]


def _convolutional(host: Host, shape: tuple[int, ...], classes: int) -> Body:
    widths, kernel = CONVOLUTIONAL[host.preset]
    widths, kernel = host.widths or widths, host.kernel_size or kernel
    channels, height, width = shape
    segments, shapes = [], []
    for out in widths:
        pool = min(height, width) // 2 >= SMALLEST_MAP
        segments.append(_block(channels, out, kernel, pool, height * width))
        height, width, channels = (height // 2, width // 2, out) if pool else (height, width, out)
        shapes.append((out, height, width))

    def run(v: Values, x: Tensor) -> Tensor:
        return linear(v, "linear", x.mean((2, 3)))

    return segments, Part(dense("linear", channels, classes), run, 2 * channels * classes), shapes


def _block(channels: int, out: int, kernel: int, pool: bool, pixels: int) -> Part:
    """Convolution, norm, ReLU, pooling: ReLU and maximum commute."""

    def run(v: Values, x: Tensor) -> Tensor:
        h = group_normed(v, "norm", convolved(v, "conv", x))
        return F.relu(F.max_pool2d(h, 2) if pool else h)

    flops = 2 * pixels * channels * out * kernel**2
    return Part((conv("conv", channels, out, kernel), *affine("norm", out)), run, flops)


def _vector(host: Host, shape: tuple[int, ...], classes: int) -> Body:
    widths = host.widths or VECTOR[host.preset]
    segments, inputs = [], math.prod(shape)
    for out in widths:
        segments.append(_layer(inputs, out))
        inputs = out

    def run(v: Values, x: Tensor) -> Tensor:
        return F.linear(x, v["weight"], v["bias"])

    return segments, Part(dense("", inputs, classes), run, 2 * inputs * classes), [(out,) for out in widths]


def _layer(inputs: int, out: int) -> Part:
    """Linear → ReLU of a flattened image."""

    def run(v: Values, x: Tensor) -> Tensor:
        return F.relu(linear(v, "linear", x.flatten(1)))

    return Part(dense("linear", inputs, out), run, 2 * inputs * out)
