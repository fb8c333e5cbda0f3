"""Hosts in float64: segments with a slot after each, and a head."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from simic.certify import modules
from simic.certify.bank import NoReference
from simic.certify.life import BLENDING, GATE, MULTIPLY, TRAINING, Slot
from simic.certify.modules import BLUEPRINTS, Part, Values, affine, conv, convolved, dense, gate, group_normed, linear
from simic.params import Host

# Widths and size of the kernels; widths alone.
CONVOLUTIONAL = {"baseline": ((8, 16, 32), 3), "deep": ((8, 16, 32, 64, 128), 3), "impaired": ((4, 8, 16), 1)}
VECTOR = {"baseline": (64,) * 3, "deep": (64,) * 5}
SMALLEST_MAP = 2  # pixels a side, below which nothing is pooled


@dataclass(frozen=True)
class Anatomy:
    """Hold ``segments`` and ``head``; per slot the shape of its features, the blueprints in order and the gate."""

    segments: tuple[Part, ...]
    head: Part
    shapes: tuple[tuple[int, ...], ...]
    blueprints: tuple[dict[str, Part], ...]
    gates: tuple[Part, ...]

    @property
    def slots(self) -> int:
        """Count the slots."""
        return len(self.segments)

    @property
    def params(self) -> int:
        """Count the parameters of the bare host."""
        return sum(part.params for part in (*self.segments, self.head))

    @property
    def flops(self) -> int:
        """Count the FLOPs of the bare host for one sample."""
        return sum(part.flops for part in (*self.segments, self.head))


def anatomy(host: Host, shape: tuple[int, ...], classes: int) -> Anatomy:
    """Return the host of the params; NoReference where the reference does not implement it."""
    known = {"cnn": CONVOLUTIONAL, "adapted_cnn": CONVOLUTIONAL, "mlp": VECTOR, "tables": ("baseline",)}
    if host.family not in known or host.preset not in known[host.family]:
        raise NoReference(
            f"train.host = {host.family}/{host.preset}: the reference has only hosts of {', '.join(known)} with the "
            f"presets {', '.join(CONVOLUTIONAL)}"
        )
    if host.family == "tables":
        segments, head, shapes = modules.tables_host(shape, classes, host.widths or modules.TABLES_WIDTHS)
        seen = [(math.prod(shape), *place) for place in shapes]
    else:
        segments, head, shapes = (_vector if host.family == "mlp" else _convolutional)(host, shape, classes)
        seen = shapes
    blueprints = [{name: build(place) for name, build in BLUEPRINTS[host.family].items()} for place in seen]
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
    """Build convolution, norm, ReLU and pooling; ReLU comes last, since it commutes with the maximum."""

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
    """Build linear → ReLU of a flattened image."""

    def run(v: Values, x: Tensor) -> Tensor:
        return F.relu(linear(v, "linear", x.flatten(1)))

    return Part(dense("linear", inputs, out), run, 2 * inputs * out)


SEGMENT, HEAD = "segments.{}.", "head."


@dataclass
class Weights:
    """Hold parameters by name of the host, of the seeds and of their gates; ``None`` where no seed is."""

    host: dict[str, Tensor]
    seeds: list[dict[str, Tensor] | None]
    gates: list[dict[str, Tensor] | None]


def of_part(weights: dict[str, Tensor], lead: str) -> dict[str, Tensor]:
    """Return the parameters of one part of the host."""
    return {name.removeprefix(lead): value for name, value in weights.items() if name.startswith(lead)}


def host_parts(body: Anatomy) -> list[tuple[str, Part]]:
    """Return segments and head, each with the prefix of its parameters' names."""
    return [*((SEGMENT.format(k), part) for k, part in enumerate(body.segments)), (HEAD, body.head)]


def part_of(body: Anatomy, slot: int, blueprint: int) -> Part:
    """Return the module of a blueprint at a slot."""
    return list(body.blueprints[slot].values())[blueprint]


def logits(body: Anatomy, weights: Weights, slots: Sequence[Slot], on: Collection[int], x: Tensor) -> Tensor:
    """Return logits of samples ``x`` with the seeds of the slots in ``on`` alone; classes in the last dimension."""
    samples = x
    for k, (lead, part) in enumerate(host_parts(body)):
        x = part.run(of_part(weights.host, lead), x)
        if k < body.slots and k in on:
            reads = part_of(body, k, slots[k].seed.blueprint).reads_sample
            join = _added if reads else _joined
            x = join(body, weights, slots[k], k, x, samples)
    return x


def _added(body: Anatomy, weights: Weights, slot: Slot, k: int, h: Tensor, samples: Tensor) -> Tensor:
    """Return the features after slot k, whose seed reads the samples: no gradient of it reaches the host."""
    values, gates = weights.seeds[k], weights.gates[k]
    assert values is not None and gates is not None
    grown = part_of(body, k, slot.seed.blueprint).run(values, samples)
    if slot.stage == TRAINING:
        return h + (grown - grown.detach())
    if slot.seed.operator == MULTIPLY:
        return h * (1.0 + slot.seed.alpha * torch.tanh(grown))
    amplitude = body.gates[k].run(gates, h) if slot.seed.operator == GATE else 1.0
    return h + slot.seed.alpha * amplitude * grown


def _joined(body: Anatomy, weights: Weights, slot: Slot, k: int, h: Tensor, samples: Tensor) -> Tensor:
    """Return the features after slot k, whose seed reads them and takes part."""
    values, gates = weights.seeds[k], weights.gates[k]
    assert values is not None and gates is not None
    isolated = slot.stage in (TRAINING, BLENDING)
    seen = h.detach() if isolated else h
    grown = part_of(body, k, slot.seed.blueprint).run(values, seen)
    if slot.stage == TRAINING:
        # The host's own values; the gradient that reaches them reaches the seed, too.
        return h + (grown - grown.detach())
    alpha: float | Tensor = slot.seed.alpha
    if slot.seed.operator == MULTIPLY:
        return h * (1.0 + alpha * torch.tanh(grown - seen))
    if slot.seed.operator == GATE:
        amplitude = body.gates[k].run(gates, seen)
        alpha = alpha * amplitude.reshape(-1, *[1] * (h.dim() - 1))
    return h + alpha * (grown - h)
