"""All parameters that train in one epoch: gathered once, updated in place, scattered at the end.

They come in blocks of alike modules (the hosts; the seeds of one blueprint at one slot; their gates). A parameter of a
block is one contiguous tensor ``[G, *shape]``, so that a product of all its modules is one batched call. Each module
has its own learning rate, step count, clip and switch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from simic.growth.batch import optimizers
from simic.growth.batch.groups import Flags
from simic.growth.batch.optimizers import MOMENTS, RowRange, Update
from simic.growth.batch.rows import Rows
from simic.params import HostOptimizer
from simic.transfer import CPU, upload


@dataclass(frozen=True)
class RowLayout:
    """What the columns of a row are: the shapes of its tensors in order, and which of them train."""

    shapes: Sequence[torch.Size]
    trained: Sequence[bool]

    @property
    def width(self) -> int:
        """Of a row."""
        return sum(shape.numel() for shape in self.shapes)

    @property
    def params(self) -> int:
        """How many of them train."""
        return sum(shape.numel() for shape, trains in zip(self.shapes, self.trained, strict=True) if trains)

    def unpack(self, rows: Tensor) -> list[Tensor]:
        """Rows ``[G, n]`` as contiguous tensors ``[G, *shape]``."""
        parts = rows.split([shape.numel() for shape in self.shapes], 1) if self.shapes else ()
        return [part.reshape(len(rows), *shape).contiguous() for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(frozen=True)
class Block:
    """Rows ``hosts [G]`` of a store; those that are ``frozen [G]`` keep their values."""

    store: Rows
    hosts: Tensor
    frozen: Flags
    weight_decay: float
    columns: RowLayout

    def gathered(self) -> list[Tensor]:
        """Its parameters, as copies ``[G, *shape]``."""
        return self.columns.unpack(self.store.param[self.hosts])


class Arena:
    """Owns the parameters of one epoch, ``params[block][tensor] [G, *shape]``, and the moments of those that train."""

    def __init__(self, blocks: list[Block], learning_rate: Tensor, optimizer: HostOptimizer) -> None:
        self.blocks, self.optimizer = blocks, optimizer
        self.params = [block.gathered() for block in blocks]
        self._moments = [
            {name: block.columns.unpack(moment[block.hosts]) for name, moment in block.store.moments.items()}
            for block in blocks
        ]
        self._rates = [learning_rate[block.hosts] for block in blocks]
        # Of all blocks side by side, so that what is one number for each module takes one operation.
        self._rows = [len(block.hosts) for block in blocks]
        self._steps = torch.cat([block.store.step[block.hosts] for block in blocks])
        self._moving = upload(~np.concatenate([block.frozen for block in blocks]), learning_rate.device)
        self._step_of, self._moves = self._steps.split(self._rows), self._moving.split(self._rows)
        # Modules of equal step and rate lie side by side: one call of a fused kernel moves them.
        fused = learning_rate.device == CPU
        self._runs = [self._fused_runs(i) for i in range(len(blocks))] if fused else None

    def leaves(self) -> list[list[Tensor]]:
        """The tensors that train, by block; their gradients are recorded from here on."""
        return [
            [tensor.requires_grad_() for tensor, trains in zip(own, block.columns.trained, strict=True) if trains]
            for own, block in zip(self.params, self.blocks, strict=True)
        ]

    def _trained(self, tensors: list[Tensor], block: Block) -> list[Tensor]:
        return [tensor for tensor, trains in zip(tensors, block.columns.trained, strict=True) if trains]

    def _fused_runs(self, index: int) -> list[RowRange]:
        block, moving = self.blocks[index], self._moves[index]
        moments = [self._trained(self._moments[index][name], block) for name in MOMENTS[self.optimizer.name]]
        params = [tensor.detach() for tensor in self._trained(self.params[index], block)]
        table = torch.stack((self._step_of[index], self._rates[index].double(), moving.double()), 1)
        changes = (table[1:] != table[:-1]).any(1).nonzero().flatten() + 1
        bounds = [0, *changes.tolist(), len(table)]
        return [
            RowRange(
                rows=slice(first, last),
                params=[tensor[first:last] for tensor in params],
                moments=[[tensor[first:last] for tensor in moment] for moment in moments],
                step=table[first, 0].float(),
                learning_rate=float(table[first, 1]),
                weight_decay=block.weight_decay,
            )
            for first, last in pairwise(bounds)
            if moving[first]
        ]

    def update(self, grads: list[list[Tensor]]) -> list[Tensor]:
        """Clip each module apart and step; returns per block the norms before clipping ``[G]``."""
        norms = [_norms(own) for own in grads]
        scales = optimizers.clip_scale(torch.cat(norms), self.optimizer.max_grad_norm)
        if self._runs is None or bool((scales < 1).any()) or not bool(scales.isfinite().all()):
            by_block = scales.split(self._rows)
            grads = [[_times(grad, scale) for grad in own] for own, scale in zip(grads, by_block, strict=True)]
        self._steps += self._moving
        if self._runs is not None:
            optimizers.apply_fused(self._runs, grads, self.optimizer)
        else:
            self._apply(grads)
        return norms

    def _apply(self, grads: list[list[Tensor]]) -> None:
        """Tensor by tensor, for devices where asking which steps are equal would make the host wait."""
        for i, (block, own) in enumerate(zip(self.blocks, grads, strict=True)):
            moments = {name: self._trained(tensors, block) for name, tensors in self._moments[i].items()}
            for place, (param, grad) in enumerate(zip(self._trained(self.params[i], block), own, strict=True)):
                wide = (-1, *[1] * (param.dim() - 1))
                update = Update(
                    param=param.detach(),
                    grad=grad,
                    moments={name: tensors[place] for name, tensors in moments.items()},
                    step=self._step_of[i].view(wide),
                    learning_rate=self._rates[i].view(wide),
                    weight_decay=block.weight_decay,
                    active=self._moves[i].view(wide) if block.frozen.any() else None,
                )
                optimizers.apply(update, self.optimizer)

    def scatter(self) -> None:
        """Write parameters, moments and steps back to where they live."""
        for block, params, moments, step in zip(self.blocks, self.params, self._moments, self._step_of, strict=True):
            values = {name: _joined(tensors) for name, tensors in {"param": params, **moments}.items()}
            for name, tensor in block.store.tensors():
                tensor[block.hosts] = step if name == "step" else values[name]


def _norms(grads: list[Tensor]) -> Tensor:
    """Of each module over all its gradients ``[G]``."""
    parts = torch.stack([torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads], 1)
    return torch.linalg.vector_norm(parts, dim=1)


def _times(grad: Tensor, scale: Tensor) -> Tensor:
    return grad * scale.view(-1, *[1] * (grad.dim() - 1))


def _joined(tensors: list[Tensor]) -> Tensor:
    """The way back from ``RowLayout.unpack``."""
    return torch.cat([tensor.detach().flatten(1) for tensor in tensors], 1)
