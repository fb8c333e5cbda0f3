"""Parameters and optimiser of a block: rows of the environment's population as the reference has them, and flat."""

import torch
from torch import Tensor

from simic.audit.reference.world.parts import Part
from simic.audit.reference.world.training import Memory
from simic.growth.batch.rows import Rows

VALUES = "values"  # beside the names of moments
Parts = list[tuple[str, Part]]
Flat = dict[str, Tensor]


def unpacked(row: Tensor, parts: Parts) -> dict[str, Tensor]:
    """The parameters by name, in float64, of a row that holds those of all parts."""
    pieces = row.double().split([part.width for _, part in parts])
    return {
        lead + name: value.clone()
        for (lead, part), piece in zip(parts, pieces, strict=True)
        for name, value in part.unflatten(piece).items()
    }


def remembered(rows: Rows, place: int, parts: Parts) -> Memory:
    """What the optimiser holds of one host."""
    moments = {kind: unpacked(moment[place], parts) for kind, moment in rows.moments.items()}
    return Memory(moments, int(rows.step[place]))


def flattened(values: dict[str, Tensor], memory: Memory) -> Flat:
    """Parameters and moments, each as one row."""
    found = {VALUES: values} | memory.moments
    return {name: torch.cat([value.flatten() for value in tensors.values()]) for name, tensors in found.items()}
