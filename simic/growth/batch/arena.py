"""All parameters that train in one epoch: gathered once, updated in place, scattered at the end.

They come in blocks of equal rows (the hosts; the seeds of one blueprint at one slot; their gates). Each row has its own
learning rate, step count, clip and switch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
        self.params = [block.store.param[block.hosts] for block in blocks]
        self._moments = [{name: m[block.hosts] for name, m in block.store.moments.items()} for block in blocks]
        self._rates = [learning_rate[block.hosts][:, None] for block in blocks]
        # Of all blocks side by side, so that what is one number for each row takes one operation.
        self._rows = [len(block.hosts) for block in blocks]
        self._steps = torch.cat([block.store.step[block.hosts] for block in blocks])
        self._moving = upload(~np.concatenate([block.frozen for block in blocks]), learning_rate.device)
        self._step_of, self._moves = self._steps.split(self._rows), self._moving.split(self._rows)

    def update(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """Clip each row apart and step; returns per block the norms before clipping ``[G]``."""
        norms = [torch.linalg.vector_norm(grad, dim=1) for grad in grads]
        scales = optimizers.clip_scale(torch.cat(norms), self.optimizer.max_grad_norm)[:, None].split(self._rows)
        self._steps += self._moving
        for i, (block, grad) in enumerate(zip(self.blocks, grads, strict=True)):
            update = Update(
                param=self.params[i],
                grad=grad * scales[i],
                moments=self._moments[i],
                step=self._step_of[i][:, None],
                learning_rate=self._rates[i],
                weight_decay=block.weight_decay,
                active=self._moves[i][:, None] if block.frozen.any() else None,
            )
            optimizers.apply(update, self.optimizer)
        return norms

    def scatter(self) -> None:
        """Write parameters, moments and steps back to where they live."""
        for block, param, moments, step in zip(self.blocks, self.params, self._moments, self._step_of, strict=True):
            values = {"param": param, "step": step, **moments}
            for name, tensor in block.store.tensors():
                tensor[block.hosts] = values[name]
