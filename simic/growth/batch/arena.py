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


@dataclass
class Update:
    """What one update reads and writes, all broadcastable to ``param``: ``active`` None = every row trains."""

    param: Tensor
    grad: Tensor
    moments: dict[str, Tensor]
    step: Tensor  # float64, counts this update: 1 at the first
    learning_rate: Tensor
    weight_decay: float
    active: Tensor | None = None


@dataclass
class RowRange:
    """Some neighbouring rows of a block that have trained equally long: views ``[rows, *shape]`` of its tensors."""

    rows: slice
    params: list[Tensor]
    moments: list[list[Tensor]]  # in the order of MOMENTS
    step: Tensor  # float32, updates done
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
        self._step_of, self._moves = self._steps.split(self._rows), self._moving.split(self._rows)
        # Modules of equal step lie side by side: one call of a fused kernel moves them.
        self._runs = [self._fused_runs(i) for i in range(len(blocks))] if device == CPU else None

    def leaves(self) -> list[list[Tensor]]:
        """Return the tensors that train, by block; their gradients are recorded from here on."""
        trained = [_trained(own, block) for own, block in zip(self.params, self.blocks, strict=True)]
        return [[tensor.requires_grad_() for tensor in own] for own in trained]

    def _fused_runs(self, index: int) -> list[RowRange]:
        block, moving, steps = self.blocks[index], self._moves[index], self._step_of[index]
        moments = [_trained(self._moments[index][name], block) for name in MOMENTS[self.optimizer.name]]
        params = [tensor.detach() for tensor in _trained(self.params[index], block)]
        changes = ((steps[1:] != steps[:-1]) | (moving[1:] != moving[:-1])).nonzero().flatten() + 1
        bounds = [0, *changes.tolist(), len(steps)]
        return [
            RowRange(
                rows=slice(first, last),
                params=[tensor[first:last] for tensor in params],
                moments=[[tensor[first:last] for tensor in moment] for moment in moments],
                step=steps[first].float(),
                weight_decay=block.weight_decay,
            )
            for first, last in pairwise(bounds)
            if moving[first]
        ]

    def update(self, grads: list[list[Tensor]]) -> list[Tensor]:
        """Clip each module apart and step; return per block the norms before clipping ``[G]``."""
        norms = [_norms(own) for own in grads]
        scales = clip_scale(torch.cat(norms), self.optimizer.max_grad_norm)
        if self._runs is None or bool((scales < 1).any()) or not bool(scales.isfinite().all()):
            by_block = scales.split(self._rows)
            grads = [[_times(grad, scale) for grad in own] for own, scale in zip(grads, by_block, strict=True)]
        self._steps += self._moving
        if self._runs is not None:
            apply_fused(self._runs, grads, self._rate, self.optimizer)
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
                    learning_rate=self._rate,
                    weight_decay=block.weight_decay,
                    active=self._moves[i].view(wide) if block.frozen.any() else None,
                )
                apply(update, self.optimizer)

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


# --- SGD with momentum and AdamW over many networks at once ----------------------------------------------------------

# Everything is elementwise, a row for each host, seed or gate, so a row never sees another. Rows of equal step go
# through torch's fused AdamW (``apply_fused``) where that rounds a row the same beside any others; ``apply`` takes any
# mixture. The tests hold both to torch.optim, row by row.


@torch.no_grad()
def apply_fused(runs: list[list[RowRange]], grads: list[list[Tensor]], rate: Tensor, optimizer: HostOptimizer) -> None:
    """Step the runs of all blocks, in place; ``grads[block][tensor]`` are of whole blocks."""
    # By decay: parameters, gradients, means, variances and steps of one fused call.
    calls: dict[float, list[list[Tensor]]] = {}
    for own, of_block in zip(runs, grads, strict=True):
        for run in own:
            run.step += 1
            for place, (param, grad) in enumerate(zip(run.params, of_block, strict=True)):
                moments = [moment[place] for moment in run.moments]
                if optimizer.name == "adamw" and param[0].numel() % LANES == 0:
                    call = calls.setdefault(run.weight_decay, [[], [], [], [], []])
                    tensors = (param, grad[run.rows].contiguous(), *moments, run.step)
                    for part, tensor in zip(call, tensors, strict=True):
                        part.append(tensor)
                    continue
                named = dict(zip(MOMENTS[optimizer.name], moments, strict=True))
                apply(Update(param, grad[run.rows], named, run.step.double(), rate, run.weight_decay), optimizer)
    for decay, (params, flat, means, variances, steps) in calls.items():
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            params, flat, means, variances, [], steps, lr=float(rate), beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1],
            weight_decay=decay, eps=ADAM_EPS, amsgrad=False, maximize=False,
        )  # fmt: skip


def apply(update: Update, optimizer: HostOptimizer) -> None:
    """Step once, in place; inactive elements keep parameter and moments bit for bit."""
    before = None
    if update.active is not None:
        before = [tensor.clone() for tensor in (update.param, *update.moments.values())]
    if optimizer.name == "sgd":
        _sgd(update, optimizer.momentum)
    else:
        _adamw(update)
    if before is not None and update.active is not None:
        for tensor, old in zip((update.param, *update.moments.values()), before, strict=True):
            tensor.copy_(torch.where(update.active, tensor, old))


def _sgd(update: Update, momentum: float) -> None:
    """Step by v ← μ v + g + λ p; p ← p − η v (torch.optim.SGD, no dampening)."""
    velocity = update.moments["momentum"]
    velocity.mul_(momentum).add_(update.grad)
    if update.weight_decay:
        velocity.add_(update.param, alpha=update.weight_decay)
    update.param.addcmul_(update.learning_rate, velocity, value=-1)


def _adamw(update: Update) -> None:
    """Step as torch.optim.AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101)."""
    beta1, beta2 = ADAM_BETAS
    mean, variance = update.moments["mean"], update.moments["variance"]
    # float64, then rounded: the last bit of pow would depend on the row's place among others.
    correction1 = (1 - beta1**update.step).to(update.param.dtype)
    correction2 = (1 - beta2**update.step).sqrt().to(update.param.dtype)
    update.param.mul_(1 - update.learning_rate * update.weight_decay)
    mean.mul_(beta1).add_(update.grad, alpha=1 - beta1)
    variance.mul_(beta2).addcmul_(update.grad, update.grad, value=1 - beta2)
    denominator = (variance.sqrt() / correction2).add_(ADAM_EPS)
    update.param.addcdiv_(mean * (update.learning_rate / correction1), denominator, value=-1)


def clip_scale(norms: Tensor, max_norm: float) -> Tensor:
    """Return the factor that brings a gradient of this norm to at most ``max_norm``; NaN stays NaN, in its own row."""
    return (max_norm / (norms + CLIP_EPS)).clamp(max=1.0)
