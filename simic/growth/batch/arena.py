"""All parameters that train in one epoch: gathered once, updated in place, scattered at the end.

They come in blocks of equal rows (the hosts; the seeds of one blueprint at one slot; their gates). Each row has its own
learning rate, step count, clip and switch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simic.growth.batch import optimizers
from simic.growth.batch.groups import Flags
from simic.growth.batch.optimizers import Update
from simic.growth.batch.rows import Rows
from simic.params import HostOptimizer
from simic.transfer import upload


@dataclass(frozen=True)
class Block:
    """Rows ``hosts [G]`` of a store; those that are ``frozen [G]`` keep their values."""

    store: Rows
    hosts: Tensor
    frozen: Flags
    weight_decay: float


class Arena:
    """Owns the parameters of one epoch: per block ``param [G, n]``, moments of that shape, ``step [G]``."""

    def __init__(self, blocks: list[Block], learning_rate: Tensor, optimizer: HostOptimizer) -> None:
        self.blocks, self.optimizer = blocks, optimizer
        self.params = [block.store.param[block.hosts].requires_grad_() for block in blocks]
        self._moments = [{name: m[block.hosts] for name, m in block.store.moments.items()} for block in blocks]
        self._steps = [block.store.step[block.hosts] for block in blocks]
        self._rates = [learning_rate[block.hosts][:, None] for block in blocks]
        self._moving = [upload(~block.frozen, learning_rate.device)[:, None] for block in blocks]

    def update(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """Clip each row apart and step; returns per block the norms before clipping ``[G]``."""
        norms = [torch.linalg.vector_norm(grad, dim=1) for grad in grads]
        for i, (block, grad) in enumerate(zip(self.blocks, grads, strict=True)):
            self._steps[i] += self._moving[i][:, 0]
            scale = optimizers.clip_scale(norms[i], self.optimizer.max_grad_norm)
            update = Update(
                param=self.params[i].detach(),
                grad=grad * scale[:, None],
                moments=self._moments[i],
                step=self._steps[i][:, None],
                learning_rate=self._rates[i],
                weight_decay=block.weight_decay,
                active=self._moving[i] if block.frozen.any() else None,
            )
            optimizers.apply(update, self.optimizer)
        return norms

    def scatter(self) -> None:
        """Write parameters, moments and steps back to where they live."""
        for block, param, moments, step in zip(self.blocks, self.params, self._moments, self._steps, strict=True):
            values = {"param": param.detach(), "step": step, **moments}
            for name, tensor in block.store.tensors():
                tensor[block.hosts] = values[name]
