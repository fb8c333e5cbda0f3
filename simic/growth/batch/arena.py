"""All parameters that train in one epoch: gathered once, updated in place, scattered at the end.

They come in blocks of alike modules (the hosts; the seeds of one blueprint at one slot; their gates). A parameter of a
block is one contiguous tensor ``[G, *shape]``, so that a product of all its modules is one batched call. Each module
has its own learning rate, step count, clip and switch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from simic.errors import SimicError
from simic.growth.batch import optimizers
from simic.growth.batch.groups import Flags
from simic.growth.batch.optimizers import MOMENTS, RowRange, Update
from simic.growth.batch.template import RowLayout
from simic.params import HostOptimizer
from simic.transfer import CPU, upload


@dataclass(frozen=True)
class Rows:
    """Where parameters live between epochs, a row for each host: ``param [E, n]``, ``step [E]`` float64 (whole numbers:
    updates done) and moments of the shape of ``param``, by name.
    """

    tensors: dict[str, Tensor]

    @classmethod
    def zeros(cls, envs: int, params: int, moments: tuple[str, ...], device: torch.device) -> Self:
        """Return the rows that nobody uses yet."""
        step = torch.zeros(envs, dtype=torch.float64, device=device)
        moment = {name: torch.zeros(envs, params, device=device) for name in moments}
        return cls({"param": torch.zeros(envs, params, device=device), "step": step, **moment})

    @property
    def param(self) -> Tensor:
        return self.tensors["param"]

    def start(self, rows: Tensor, param: Tensor) -> None:
        """Put new parameters into the rows ``[R]``; moments and step start from zero."""
        for name, tensor in self.tensors.items():
            tensor[rows] = param if name == "param" else 0.0

    def clone(self) -> Self:
        return type(self)({name: tensor.clone() for name, tensor in self.tensors.items()})

    def fill(self, name: str, state: Mapping[str, Tensor]) -> Self:
        """Take everything from ``name/…`` of a state that ``named`` gave; SimicError where that is of other shapes."""
        for part, tensor in self.tensors.items():
            saved = state.get(f"{name}/{part}")
            if saved is None or saved.shape != tensor.shape:
                shape = None if saved is None else tuple(saved.shape)
                raise SimicError(f"population state {name}/{part}: shape {shape}, must be {tuple(tensor.shape)}")
            tensor.copy_(saved)
        return self

    def copy_where(self, rows: Tensor, other: Self) -> None:
        """Take ``other``'s rows where ``rows [E]`` bool."""
        on_host = rows.device.type == "cpu"  # elsewhere to ask which ones would make the host wait
        chosen = rows.nonzero().flatten() if on_host else rows
        for name, mine in self.tensors.items():
            theirs = other.tensors[name]
            if on_host:
                mine[chosen] = theirs[chosen]
            else:
                mine.copy_(torch.where(rows.view(-1, *[1] * (mine.dim() - 1)), theirs, mine))


def named(stores: Mapping[str, Rows]) -> dict[str, Tensor]:
    """Return copies of everything of several stores: ``<store>/<part>``."""
    return {
        f"{name}/{part}": tensor.clone() for name, store in stores.items() for part, tensor in store.tensors.items()
    }


@dataclass(frozen=True)
class Block:
    """Rows of a store that train together: the hosts, or the seeds of one blueprint at one slot, or their gates."""

    name: str  # of the store
    store: Rows
    hosts: Tensor  # [G] rows of the store
    places: Tensor  # [G] of these hosts among those that are trained
    frozen: Flags  # [G] keeps its values
    weight_decay: float
    columns: RowLayout

    def gathered(self) -> list[Tensor]:
        """Copy its parameters, ``[G, *shape]``."""
        return self.columns.unpack(self.store.param[self.hosts])


class Arena:
    """Owns the parameters of one epoch, ``params[block][tensor] [G, *shape]``, and the moments of those that train."""

    def __init__(self, blocks: list[Block], learning_rate: Tensor, optimizer: HostOptimizer) -> None:
        self.blocks, self.optimizer = blocks, optimizer
        self.params = [block.gathered() for block in blocks]
        self._moments = [
            {name: block.columns.unpack(block.store.tensors[name][block.hosts]) for name in MOMENTS[optimizer.name]}
            for block in blocks
        ]
        self._rates = [learning_rate[block.hosts] for block in blocks]
        # Of all blocks side by side, so that what is one number for each module takes one operation.
        self._rows = [len(block.hosts) for block in blocks]
        self._steps = torch.cat([block.store.tensors["step"][block.hosts] for block in blocks])
        self._moving = upload(~np.concatenate([block.frozen for block in blocks]), learning_rate.device)
        self._step_of, self._moves = self._steps.split(self._rows), self._moving.split(self._rows)
        # Modules of equal step and rate lie side by side: one call of a fused kernel moves them.
        fused = learning_rate.device == CPU
        self._runs = [self._fused_runs(i) for i in range(len(blocks))] if fused else None

    def leaves(self) -> list[list[Tensor]]:
        """Return the tensors that train, by block; their gradients are recorded from here on."""
        trained = [_trained(own, block) for own, block in zip(self.params, self.blocks, strict=True)]
        return [[tensor.requires_grad_() for tensor in own] for own in trained]

    def _fused_runs(self, index: int) -> list[RowRange]:
        block, moving = self.blocks[index], self._moves[index]
        moments = [_trained(self._moments[index][name], block) for name in MOMENTS[self.optimizer.name]]
        params = [tensor.detach() for tensor in _trained(self.params[index], block)]
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
        """Clip each module apart and step; return per block the norms before clipping ``[G]``."""
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
        """Step tensor by tensor, for devices where asking which steps are equal would make the host wait."""
        for i, (block, own) in enumerate(zip(self.blocks, grads, strict=True)):
            moments = {name: _trained(tensors, block) for name, tensors in self._moments[i].items()}
            for place, (param, grad) in enumerate(zip(_trained(self.params[i], block), own, strict=True)):
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
            for name, tensor in block.store.tensors.items():
                tensor[block.hosts] = step if name == "step" else values[name]


def _trained(tensors: list[Tensor], block: Block) -> list[Tensor]:
    return [tensor for tensor, trains in zip(tensors, block.columns.trained, strict=True) if trains]


def _norms(grads: list[Tensor]) -> Tensor:
    """Return the norm of each module over all its gradients ``[G]``."""
    parts = torch.stack([torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads], 1)
    return torch.linalg.vector_norm(parts, dim=1)


def _times(grad: Tensor, scale: Tensor) -> Tensor:
    return grad * scale.view(-1, *[1] * (grad.dim() - 1))


def _joined(tensors: list[Tensor]) -> Tensor:
    """Undo ``RowLayout.unpack``."""
    return torch.cat([tensor.detach().flatten(1) for tensor in tensors], 1)
