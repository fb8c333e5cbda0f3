"""All parameters that train in one epoch: gathered once, updated in place, scattered at the end.

They come in blocks of alike modules (the hosts; the seeds of one blueprint at one slot; their gates). A parameter of a
block is one contiguous tensor ``[G, *shape]``, so that a product of all its modules is one batched call. Each module
has its own step count, clip and switch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from simic.errors import SimicError
from simic.growth.batch.groups import Flags
from simic.growth.batch.template import RowLayout
from simic.params import HostOptimizer
from simic.transfer import CPU, upload

ADAM_BETAS = (0.9, 0.99)  # hosts train for a hundred steps: 0.999 would remember them all
ADAM_EPS = 1e-8
CLIP_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_

LANES = 16  # of the widest vector registers: fused kernels round what fills them otherwise than what is left over

MOMENTS: dict[str, tuple[str, ...]] = {"sgd": ("momentum",), "adamw": ("mean", "variance")}


@dataclass(frozen=True)
class Rows:
    """Where parameters live between epochs, a row for each host: ``param [E, n]``, ``step [E]`` float64 (whole numbers:
    updates done) and moments of the shape of ``param``, by name.
    """

    tensors: dict[str, Tensor]

    @classmethod
    def zeros(cls, envs: int, params: int, moments: tuple[str, ...], device: torch.device) -> Self:
        step = torch.zeros(envs, dtype=torch.float64, device=device)
        wide = {name: torch.zeros(envs, params, device=device) for name in ("param", *moments)}
        return cls({"param": wide["param"], "step": step} | wide)

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


@dataclass(frozen=True)
class RowRange:
    """Neighbouring rows of a block that step together: views ``[rows, *shape]`` of the tensors that train."""

    rows: slice
    params: list[Tensor]
    moments: list[list[Tensor]]  # of each tensor, in the order of MOMENTS
    step: Tensor  # float64, updates done: [rows], or [1] where all have trained equally long
    moving: Tensor | None  # bool [rows]; None: all
    weight_decay: float


class Arena:
    """Owns the parameters of one epoch, ``params[block][tensor] [G, *shape]``, and the moments of those that train."""

    def __init__(
        self, blocks: list[Block], learning_rate: float, optimizer: HostOptimizer, device: torch.device
    ) -> None:
        self.blocks, self.optimizer = blocks, optimizer
        self._rate = torch.full((1,), learning_rate, device=device)
        self.params = [block.gathered() for block in blocks]
        self._moments = [
            {name: block.columns.unpack(block.store.tensors[name][block.hosts]) for name in MOMENTS[optimizer.name]}
            for block in blocks
        ]
        # Of all blocks side by side, so that what is one number for each module takes one operation.
        self._rows = [len(block.hosts) for block in blocks]
        self._steps = torch.cat([block.store.tensors["step"][block.hosts] for block in blocks])
        self._moving = upload(~np.concatenate([block.frozen for block in blocks]), device)
        self._step_of = self._steps.split(self._rows)
        # To ask which steps are equal would make the host wait for another device.
        self._by_step = device == CPU
        self._ranges = [self._ranges_of(i, moving) for i, moving in enumerate(self._moving.split(self._rows))]

    def leaves(self) -> list[list[Tensor]]:
        """Return the tensors that train, by block; their gradients are recorded from here on."""
        trained = [_trained(own, block) for own, block in zip(self.params, self.blocks, strict=True)]
        return [[tensor.requires_grad_() for tensor in own] for own in trained]

    def _ranges_of(self, index: int, moving: Tensor) -> list[RowRange]:
        """Return one range for each run of rows of equal step that move; without ``_by_step`` one for the block."""
        block, steps = self.blocks[index], self._step_of[index]
        params = [tensor.detach() for tensor in _trained(self.params[index], block)]
        named = [_trained(tensors, block) for tensors in self._moments[index].values()]
        moments = [list(own) for own in zip(*named, strict=True)]
        if not self._by_step:
            moves = moving if block.frozen.any() else None
            return [RowRange(slice(None), params, moments, steps, moves, block.weight_decay)]
        changes = ((steps[1:] != steps[:-1]) | (moving[1:] != moving[:-1])).nonzero().flatten() + 1
        return [
            RowRange(
                rows=slice(first, last),
                params=[tensor[first:last] for tensor in params],
                moments=[[tensor[first:last] for tensor in own] for own in moments],
                step=steps[first : first + 1],
                moving=None,
                weight_decay=block.weight_decay,
            )
            for first, last in pairwise([0, *changes.tolist(), len(steps)])
            if moving[first]
        ]

    def update(self, grads: list[list[Tensor]]) -> list[Tensor]:
        """Clip each module apart and step; return per block the norms before clipping ``[G]``."""
        norms = [_norms(own) for own in grads]
        # A gradient of a larger norm is brought to it; NaN stays NaN, in its own row.
        scales = (self.optimizer.max_grad_norm / (torch.cat(norms) + CLIP_EPS)).clamp(max=1.0)
        if not self._by_step or bool((scales < 1).any()) or not bool(scales.isfinite().all()):
            by_block = zip(grads, scales.split(self._rows), strict=True)
            grads = [[grad * scale.view(-1, *[1] * (grad.dim() - 1)) for grad in own] for own, scale in by_block]
        self._steps += self._moving
        apply(self._ranges, grads, self._rate, self.optimizer, self._by_step)
        return norms

    def scatter(self) -> None:
        """Write parameters, moments and steps back to where they live."""
        for block, params, moments, step in zip(self.blocks, self.params, self._moments, self._step_of, strict=True):
            block.store.tensors["step"][block.hosts] = step
            for name, tensors in {"param": params, **moments}.items():
                rows = [tensor.detach().flatten(1) for tensor in tensors]
                block.store.tensors[name][block.hosts] = torch.cat(rows, 1)


def _trained(tensors: list[Tensor], block: Block) -> list[Tensor]:
    return [tensor for tensor, trains in zip(tensors, block.columns.trained, strict=True) if trains]


def _norms(grads: list[Tensor]) -> Tensor:
    """Return the norm of each module over all its gradients ``[G]``."""
    parts = torch.stack([torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads], 1)
    return torch.linalg.vector_norm(parts, dim=1)


# --- SGD with momentum and AdamW over many networks at once ----------------------------------------------------------


@torch.no_grad()
def apply(
    ranges: list[list[RowRange]], grads: list[list[Tensor]], rate: Tensor, optimizer: HostOptimizer, by_step: bool
) -> None:
    """Step the ranges of all blocks, in place; ``grads[block][tensor]`` are of whole blocks.

    All is elementwise, so a row never sees another. Rows of equal step (``by_step``) go through torch's fused AdamW
    where that rounds a row the same beside any others. The tests hold both ways to torch.optim, row by row.
    """
    fused = by_step and optimizer.name == "adamw"
    # By decay: parameters, gradients, means, variances and steps of one fused call.
    calls: dict[float, list[list[Tensor]]] = {}
    for own, of_block in zip(ranges, grads, strict=True):
        for part in own:
            step = part.step[0].float() if fused else part.step
            for param, whole, moments in zip(part.params, of_block, part.moments, strict=True):
                grad = whole[part.rows]
                if not fused or param[0].numel() % LANES:
                    _step(part, param, grad, moments, rate, optimizer)
                    continue
                call = calls.setdefault(part.weight_decay, [[], [], [], [], []])
                for tensors, tensor in zip(call, (param, grad.contiguous(), *moments, step), strict=True):
                    tensors.append(tensor)
    for decay, (params, flat, means, variances, steps) in calls.items():
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            params, flat, means, variances, [], steps, lr=float(rate), beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1],
            weight_decay=decay, eps=ADAM_EPS, amsgrad=False, maximize=False,
        )  # fmt: skip


def _step(
    part: RowRange, param: Tensor, grad: Tensor, moments: list[Tensor], rate: Tensor, optimizer: HostOptimizer
) -> None:
    """Step one tensor of a range; rows that do not move keep every bit."""
    wide = (-1, *[1] * (param.dim() - 1))
    before = None if part.moving is None else [tensor.clone() for tensor in (param, *moments)]
    if optimizer.name == "sgd":  # v ← μ v + g + λ p; p ← p − η v (torch.optim.SGD, no dampening)
        [velocity] = moments
        velocity.mul_(optimizer.momentum).add_(grad)
        if part.weight_decay:
            velocity.add_(param, alpha=part.weight_decay)
        param.addcmul_(rate, velocity, value=-1)
    else:  # torch.optim.AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101)
        (mean, variance), (beta1, beta2), step = moments, ADAM_BETAS, part.step.view(wide)
        # float64, then rounded: the last bit of pow would depend on the row's place among others.
        correction1 = (1 - beta1**step).to(param.dtype)
        correction2 = (1 - beta2**step).sqrt().to(param.dtype)
        param.mul_(1 - rate * part.weight_decay)
        mean.mul_(beta1).add_(grad, alpha=1 - beta1)
        variance.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (variance.sqrt() / correction2).add_(ADAM_EPS)
        param.addcdiv_(mean * (rate / correction1), denominator, value=-1)
    if before is not None and part.moving is not None:
        for tensor, old in zip((param, *moments), before, strict=True):
            tensor.copy_(torch.where(part.moving.view(wide), tensor, old))
