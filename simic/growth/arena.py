"""All parameters that train in one epoch as one flat vector, gathered once, updated in place, scattered at the end.

The vector is cut into blocks (the hosts; the seeds of one blueprint at one slot; their gates) of equal rows, and each
row is a segment: it has its own learning rate, step count, clip and switch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simic.growth import optimizers
from simic.growth.optimizers import Update
from simic.growth.rows import Rows
from simic.params import HostOptimizer


@dataclass(frozen=True)
class Block:
    """Rows ``hosts [G]`` of a store; ``frozen [G]`` bool on the CPU keep their values."""

    store: Rows
    hosts: Tensor
    frozen: Tensor
    weight_decay: float


class Arena:
    """Owns the flat vectors of one epoch."""

    def __init__(self, blocks: list[Block], learning_rate: Tensor, optimizer: HostOptimizer) -> None:
        self.blocks, self.optimizer = blocks, optimizer
        device = learning_rate.device
        self.flat = torch.cat([block.store.param[block.hosts].flatten() for block in blocks]).requires_grad_()
        self.moments = {
            name: torch.cat([block.store.moments[name][block.hosts].flatten() for block in blocks])
            for name in blocks[0].store.moments
        }
        self.step = torch.cat([block.store.step[block.hosts] for block in blocks])
        self.widths = [block.store.param.shape[1] for block in blocks]
        self.sizes = [len(block.hosts) * width for block, width in zip(blocks, self.widths, strict=True)]
        self.counts = [len(block.hosts) for block in blocks]
        widths = torch.tensor(self.widths).repeat_interleave(torch.tensor(self.counts))
        self.segment = torch.arange(len(widths)).repeat_interleave(widths).to(device)
        decay = torch.tensor([block.weight_decay for block in blocks]).repeat_interleave(torch.tensor(self.counts))
        self._weight_decay = decay.to(device)[self.segment]
        self._learning_rate = learning_rate[torch.cat([block.hosts for block in blocks])][self.segment]
        frozen = torch.cat([block.frozen for block in blocks])
        self._ticks = (~frozen).to(device, torch.float64)
        self._active = (~frozen).to(device)[self.segment] if bool(frozen.any()) else None

    def leaves(self) -> list[Tensor]:
        """Per block, its rows ``[G, n]`` as views of the vector that gradients flow to."""
        return self._per_block(self.flat)

    def update(self, grad: Tensor) -> Tensor:
        """Clip each segment apart and step; returns the norms before clipping ``[segments]``."""
        norms = torch.cat([torch.linalg.vector_norm(rows, dim=1) for rows in self._per_block(grad)])
        scale = optimizers.clip_scale(norms, self.optimizer.max_grad_norm)
        self.step += self._ticks
        update = Update(
            param=self.flat.detach(),
            grad=grad * scale[self.segment],
            moments=self.moments,
            step=self.step[self.segment] if self.optimizer.name == "adamw" else self.step,
            learning_rate=self._learning_rate,
            weight_decay=self._weight_decay,
            active=self._active,
        )
        optimizers.apply(update, self.optimizer)
        return norms

    def scatter(self) -> None:
        """Write parameters, moments and steps back to where they live."""
        flat = {"param": self.flat.detach(), **self.moments}
        pieces = {name: self._per_block(tensor) for name, tensor in flat.items()}
        steps = self.step.split(self.counts)
        for i, block in enumerate(self.blocks):
            for name, tensor in block.store.tensors():
                tensor[block.hosts] = steps[i] if name == "step" else pieces[name][i]

    def by_block(self, values: Tensor) -> list[Tensor]:
        """Cut ``[…, segments]`` into each block's columns."""
        return list(values.split(self.counts, -1))

    def _per_block(self, flat: Tensor) -> list[Tensor]:
        return [rows.view(-1, width) for rows, width in zip(flat.split(self.sizes), self.widths, strict=True)]
