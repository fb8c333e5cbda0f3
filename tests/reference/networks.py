"""Hosts in float64: segments with a slot after each, and a head."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from simic.params import Host
from tests.reference.bank import NoReference
from tests.reference.life import BLENDING, GATE, MULTIPLY, TRAINING, Slot
from tests.reference.modules import (
    BLUEPRINTS,
    Part,
    Shape,
    Values,
    affine,
    conv,
    convolved,
    dense,
    gate,
    linear,
    normed,
)

# Widths, and of convolutional hosts the size of the kernels.
CONVOLUTIONAL = {
    "baseline": ((8, 16, 32), 3),
    "deep": ((8, 16, 32, 64, 128), 3),
    "impaired": ((4, 8, 16), 1),
}
VECTOR = {"baseline": (64,) * 3, "deep": (64,) * 5}
TABLES = {"baseline": 1, "double": 2, "triple": 3}  # slots
PRESETS = {"cnn": CONVOLUTIONAL, "mlp": VECTOR, "tables": TABLES}
SMALLEST_MAP = 2  # pixels a side, below which nothing is pooled


@dataclass(frozen=True)
class Anatomy:
    """Hold ``segments`` and ``head``; per slot the shape of its features, the blueprints in order and the gate."""

    segments: tuple[Part, ...]
    head: Part
    shapes: tuple[Shape, ...]
    blueprints: tuple[dict[str, Part], ...]
    gates: tuple[Part, ...]

    @property
    def slots(self) -> int:
        return len(self.segments)

    @property
    def params(self) -> int:
        return sum(part.params for part in (*self.segments, self.head))

    @property
    def flops(self) -> int:
        return sum(part.flops for part in (*self.segments, self.head))


def anatomy(host: Host, shape: Shape, classes: int) -> Anatomy:
    """Return the host of the params; NoReference where the reference does not implement it."""
    if host.preset not in PRESETS.get(host.family, {}):
        raise NoReference(
            f"train.host = {host.family}/{host.preset}: the reference has only hosts of {', '.join(PRESETS)} with the "
            f"presets {', '.join(CONVOLUTIONAL)}"
        )
    parts_of = {"mlp": _vector, "tables": _tables}.get(host.family, _convolutional)
    segments, head, shapes = parts_of(host, shape, classes)
    columns = (math.prod(shape),) if host.family == "tables" else ()  # which its seeds read
    blueprints = [
        {name: build((*columns, *place)) for name, build in BLUEPRINTS[host.family].items()}
        for place in shapes
    ]
    return Anatomy(
        tuple(segments),
        head,
        tuple(shapes),
        tuple(blueprints),
        tuple(gate(place) for place in shapes),
    )


Body = tuple[list[Part], Part, list[Shape]]


def _convolutional(host: Host, shape: Shape, classes: int) -> Body:
    widths, kernel = CONVOLUTIONAL[host.preset]
    kernel = host.kernel_size or kernel
    channels, height, width = shape
    segments = []
    shapes = []
    for out in host.widths or widths:
        pool = min(height, width) // 2 >= SMALLEST_MAP
        segments.append(_block(channels, out, kernel, pool, height * width))
        height, width, channels = (height // 2, width // 2, out) if pool else (height, width, out)
        shapes.append((out, height, width))
    head = Part(
        dense("linear", channels, classes), lambda v, x: linear(v, "linear", x.mean((2, 3)))
    )
    return segments, head, shapes


def _block(channels: int, out: int, kernel: int, pool: bool, pixels: int) -> Part:
    """Build convolution, norm, ReLU and pooling; ReLU comes last, since it commutes with the maximum."""

    def run(v: Values, x: Tensor) -> Tensor:
        h = normed(v, "norm", convolved(v, "conv", x))
        return F.relu(F.max_pool2d(h, 2) if pool else h)

    return Part((conv("conv", channels, out, kernel, pixels), *affine("norm", out)), run)


def _vector(host: Host, shape: Shape, classes: int) -> Body:
    """Build linear, ReLU for each width, and linear."""
    widths = host.widths or VECTOR[host.preset]
    segments = [
        Part(dense("linear", inputs, out), lambda v, x: F.relu(linear(v, "linear", x.flatten(1))))
        for inputs, out in pairwise((math.prod(shape), *widths))
    ]
    head = Part(dense("", widths[-1], classes), lambda v, x: F.linear(x, v["weight"], v["bias"]))
    return segments, head, [(out,) for out in widths]


def _tables(host: Host, shape: Shape, classes: int) -> Body:
    """Build linear, ReLU, linear, ReLU, linear; all seeds are added to the output of the first."""
    first, second = host.widths or (32, 32)
    slots = TABLES[host.preset]

    def run(v: Values, h: Tensor) -> Tensor:
        return linear(v, "3", F.relu(linear(v, "1", F.relu(h))))

    segment = Part(
        dense("linear", math.prod(shape), first), lambda v, x: linear(v, "linear", x.flatten(1))
    )
    return (
        [segment, *[Part((), lambda v, x: x)] * (slots - 1)],
        Part((*dense("1", first, second), *dense("3", second, classes)), run),
        [(first,)] * slots,
    )


@dataclass
class Block:
    """Hold parameters that are clipped and stepped together, by name, and the moments of the trained ones."""

    values: dict[str, Tensor]
    decay: float = 0.0
    fitted: frozenset[str] = frozenset()  # names of what never trains
    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    @property
    def trained(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.values.items() if name not in self.fitted}


@dataclass
class Weights:
    """Hold the parameters of the host, and by slot those of the seeds and of their gates, where there are any."""

    host: Block
    seeds: dict[int, Block] = field(default_factory=dict)
    gates: dict[int, Block] = field(default_factory=dict)


def host_parts(body: Anatomy) -> Iterator[tuple[str, Part]]:
    """Yield segments and head, each with the prefix of its parameters' names."""
    for k, part in enumerate(body.segments):
        yield f"segments.{k}.", part
    yield "head.", body.head


def part_of(body: Anatomy, slot: int, blueprint: int) -> Part:
    return list(body.blueprints[slot].values())[blueprint]


def logits(
    body: Anatomy, weights: Weights, slots: Sequence[Slot], on: Collection[int], x: Tensor
) -> Tensor:
    """Return logits of samples ``x`` with the seeds of the slots in ``on`` alone; classes in the last dimension."""
    h = x
    for k, (lead, part) in enumerate(host_parts(body)):
        own = {
            name.removeprefix(lead): value
            for name, value in weights.host.values.items()
            if name.startswith(lead)
        }
        h = part.run(own, h)
        if k in on:
            h = _joined(body, weights, slots[k], k, h, x)
    return h


def _joined(
    body: Anatomy, weights: Weights, slot: Slot, k: int, h: Tensor, samples: Tensor
) -> Tensor:
    """Return the features after slot k, whose seed takes part. One that reads features returns what they become, one
    that reads the samples what is added to them; no gradient of the latter reaches the host.
    """
    part = part_of(body, k, slot.seed.blueprint)
    seen = h.detach() if slot.stage in (TRAINING, BLENDING) else h
    grown = part.run(weights.seeds[k].values, samples if part.reads_sample else seen)
    if slot.stage == TRAINING:
        # The host's own values; the gradient that reaches them reaches the seed, too.
        return h + (grown - grown.detach())
    alpha: float | Tensor = slot.seed.alpha
    if slot.seed.operator == MULTIPLY:
        return h * (1.0 + alpha * torch.tanh(grown if part.reads_sample else grown - seen))
    if slot.seed.operator == GATE:
        amplitude = body.gates[k].run(weights.gates[k].values, h if part.reads_sample else seen)
        alpha = alpha * amplitude.reshape(-1, *[1] * (h.dim() - 1))
    return h + alpha * (grown if part.reads_sample else grown - h)
