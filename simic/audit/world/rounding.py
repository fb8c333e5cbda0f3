"""What rounding alone does to an epoch: the reference trains it once more in float32.

Long sums lose digits, and pixels and units near a kink of the network may go the other way.
"""

from collections.abc import Mapping, Sequence

import torch

from simic.audit.reference.world.host import ReferenceHost
from simic.audit.reference.world.networks import Weights
from simic.audit.reference.world.training import Memory
from simic.audit.world.blocks import Flat, Parts, flattened, remembered, unpacked
from simic.growth.batch.rows import Rows

COARSE = torch.float32


def trained(
    host: ReferenceHost,
    place: int,
    blocks: Sequence[tuple[str, str, Parts]],
    before: Mapping[str, Rows],
    known: set[str],
) -> dict[str, Flat]:
    """Parameters and moments by block after the epoch that ``host`` has just trained from ``before``; blocks that were
    not ``known`` then began in it, and others take no part.
    """
    weights, memories = Weights({}, [None] * len(host.slots), [None] * len(host.slots)), dict[str, Memory]()
    for name, store, parts in blocks:
        values, memory = host.block(name), host.memories[name]
        if name in known and store in before:
            values = unpacked(before[store].param[place], parts)
            memory = remembered(before[store], place, parts)
        elif name in host.fresh:
            values, memory = host.fresh[name], Memory.fresh(host.fresh[name], host.world.params.train.host_optimizer)
        values = _coarse(values)
        kind, _, slot = name.partition(".")
        if kind == "host":
            weights.host.update(values)
        else:
            (weights.seeds if kind == "seed" else weights.gates)[int(slot)] = values
        moments = {moment: _coarse(tensors) for moment, tensors in memory.moments.items()}
        memories[name] = Memory(moments, memory.steps)
    host.train_again(weights, memories, COARSE)
    return {name: flattened(weights.block(name), memory) for name, memory in memories.items()}


def _coarse(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to(COARSE) for name, value in tensors.items()}
