"""A network that grows, a second time: how seeds join their host, and what their joints hand back as gradients."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simic.audit.reference.world.hosts import Anatomy
from simic.audit.reference.world.life import BLENDING, GATE, MULTIPLY, TRAINING, Slot
from simic.audit.reference.world.parts import Part

SEGMENT, HEAD = "segments.{}.", "head."


@dataclass
class Weights:
    """Parameters by name of the host, of the seeds and of their gates; ``None`` where no seed is."""

    host: dict[str, Tensor]
    seeds: list[dict[str, Tensor] | None]
    gates: list[dict[str, Tensor] | None]

    def block(self, name: str) -> dict[str, Tensor]:
        """Of ``host``, ``seed.0``, ``gate.0``, …"""
        kind, _, slot = name.partition(".")
        found = self.host if kind == "host" else (self.seeds, self.gates)[kind == "gate"][int(slot)]
        assert found is not None
        return found


def of_part(weights: dict[str, Tensor], lead: str) -> dict[str, Tensor]:
    """The parameters of one part of the host."""
    return {name.removeprefix(lead): value for name, value in weights.items() if name.startswith(lead)}


def host_parts(body: Anatomy) -> list[tuple[str, Part]]:
    """Segments and head with what the names of their parameters begin with."""
    return [*((SEGMENT.format(k), part) for k, part in enumerate(body.segments)), (HEAD, body.head)]


def part_of(body: Anatomy, slot: int, blueprint: int) -> Part:
    """The module of a blueprint at a slot."""
    return list(body.blueprints[slot].values())[blueprint]


def logits(body: Anatomy, weights: Weights, slots: Sequence[Slot], on: Collection[int], x: Tensor) -> Tensor:
    """Of samples ``x``, with the seeds of the slots in ``on`` and no others; classes in the last dimension."""
    samples = x
    for k, (lead, part) in enumerate(host_parts(body)):
        x = part.run(of_part(weights.host, lead), x)
        if k < body.slots and k in on:
            reads = part_of(body, k, slots[k].seed.blueprint).reads_sample
            join = _added if reads else _joined
            x = join(body, weights, slots[k], k, x, samples)
    return x


def _added(body: Anatomy, weights: Weights, slot: Slot, k: int, h: Tensor, samples: Tensor) -> Tensor:
    """The features after slot k, whose seed reads the samples: no gradient of it reaches the host."""
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
    """The features after slot k, whose seed reads them and takes part."""
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
