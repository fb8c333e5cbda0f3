"""All parameters that train in one epoch: gathered once, updated in place, scattered at the end.

They come in blocks of alike modules (the hosts; the seeds of one blueprint at one slot; their gates). A parameter of a
block is one contiguous tensor ``[G, *shape]``, so that a product of all its modules is one batched call. Each module
has its own step count, clip and switch.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

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
        """Allocate rows that nothing stands in yet.

        Args:
            envs: How many hosts, E.
            params: Parameters of each row, n.
            moments: Names of the optimizer's moments.
            device: Where they are.
        """
        step = torch.zeros(envs, dtype=torch.float64, device=device)
        param = torch.zeros(envs, params, device=device)
        return cls(
            {"param": param, "step": step} | {name: torch.zeros_like(param) for name in moments}
        )

    @property
    def param(self) -> Tensor:
        return self.tensors["param"]

    def start(self, rows: Tensor, param: Tensor) -> None:
        """Put new parameters into the rows ``[R]``; moments and step start from zero."""
        for name, tensor in self.tensors.items():
            tensor[rows] = param if name == "param" else 0.0

    def clone(self) -> Self:
        return type(self)({name: tensor.clone() for name, tensor in self.tensors.items()})

    def copy_where(self, hosts: Tensor, source: Self) -> None:
        """Take the rows of ``source`` where ``hosts [E]`` bool."""
        # On another device, asking which rows are meant would make this one wait.
        on_host = hosts.device.type == "cpu"
        rows = hosts.nonzero().flatten() if on_host else hosts
        for name, tensor in self.tensors.items():
            values = source.tensors[name]
            if on_host:
                tensor[rows] = values[rows]
            else:
                chosen = hosts.view(-1, *[1] * (tensor.dim() - 1))
                tensor.copy_(torch.where(chosen, values, tensor))


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


@dataclass(frozen=True)
class BlockTensors:
    """What an epoch has of a block: its parameters and moments, gathered; ``steps`` is a view of the arena's."""

    block: Block
    params: list[Tensor]  # [G, *shape] each
    moments: dict[str, list[Tensor]]
    steps: Tensor  # [G]
    ranges: list[RowRange]

    @property
    def trained_params(self) -> list[Tensor]:
        return _trained(self.params, self.block)

    def scatter(self) -> None:
        """Write parameters, moments and steps back to where they live."""
        store = self.block.store.tensors
        store["step"][self.block.hosts] = self.steps
        for name, tensors in {"param": self.params, **self.moments}.items():
            rows = [tensor.detach().flatten(1) for tensor in tensors]
            store[name][self.block.hosts] = torch.cat(rows, 1)


class Arena:
    """Owns the parameters of one epoch, and the moments of those that train.

    Args:
        blocks: What trains.
        learning_rate: Of this epoch.
        optimizer: Its kind and settings.
        device: Where the stores are.
    """

    def __init__(
        self,
        blocks: list[Block],
        learning_rate: float,
        optimizer: HostOptimizer,
        device: torch.device,
    ) -> None:
        self.optimizer = optimizer
        self._rate = torch.full((1,), learning_rate, device=device)
        # To ask which steps are equal would make the host wait for another device.
        self._by_step = device == CPU

        # Of all blocks side by side, so that what is one number for each module takes one operation.
        self._rows = [len(block.hosts) for block in blocks]
        self._steps = torch.cat([block.store.tensors["step"][block.hosts] for block in blocks])
        self._moving = upload(~np.concatenate([block.frozen for block in blocks]), device)

        self.blocks: list[BlockTensors] = []
        for block, steps, moving in zip(
            blocks, self._steps.split(self._rows), self._moving.split(self._rows), strict=True
        ):
            # Gathered into tensors of their own, so that an epoch that fails has changed nothing.
            params = block.gathered()
            moments = {
                name: block.columns.unpack(block.store.tensors[name][block.hosts])
                for name in MOMENTS[optimizer.name]
            }
            ranges = _ranges(block, params, moments, steps, moving, self._by_step)
            self.blocks.append(BlockTensors(block, params, moments, steps, ranges))

    def leaves(self) -> list[list[Tensor]]:
        """List the tensors that train, by block; their gradients are recorded from here on."""
        return [
            [tensor.requires_grad_() for tensor in tensors.trained_params]
            for tensors in self.blocks
        ]

    def update(self, grads: list[list[Tensor]]) -> list[Tensor]:
        """Clip each module apart, and step.

        Args:
            grads: By block and tensor, ``[G, *shape]``.

        Returns:
            The norms before clipping of each block, ``[G]``.
        """
        norms = [_norms(block_grads) for block_grads in grads]
        # A gradient of a larger norm is brought to it; NaN stays NaN, in its own row.
        scales = (self.optimizer.max_grad_norm / (torch.cat(norms) + CLIP_EPS)).clamp(max=1.0)
        if not self._by_step or (scales < 1).any() or not scales.isfinite().all():
            grads = [
                [grad * scale.view(-1, *[1] * (grad.dim() - 1)) for grad in block_grads]
                for block_grads, scale in zip(grads, scales.split(self._rows), strict=True)
            ]
        # A frozen row has made no update: its bias corrections stand still.
        self._steps += self._moving
        apply(
            [tensors.ranges for tensors in self.blocks],
            grads,
            self._rate,
            self.optimizer,
            self._by_step,
        )
        return norms

    def scatter(self) -> None:
        """Write everything back to where it lives."""
        for tensors in self.blocks:
            tensors.scatter()


def _ranges(
    block: Block,
    params: list[Tensor],
    moments: dict[str, list[Tensor]],
    steps: Tensor,
    moving: Tensor,
    by_step: bool,
) -> list[RowRange]:
    """Cut a block into a range for each run of rows of equal step that move; without ``by_step`` it is one range."""
    # What trains; the rest was fitted to data once.
    trained_params = [tensor.detach() for tensor in _trained(params, block)]
    by_name = [_trained(tensors, block) for tensors in moments.values()]
    trained_moments = [list(of_tensor) for of_tensor in zip(*by_name, strict=True)]
    # One range, in which rows that are frozen are put back after the step.
    if not by_step:
        moves = moving if block.frozen.any() else None
        return [
            RowRange(slice(None), trained_params, trained_moments, steps, moves, block.weight_decay)
        ]
    # A range ends where the step count changes: torch's fused kernel takes one count for all of a tensor.
    other_steps = steps[1:] != steps[:-1]
    other_moving = moving[1:] != moving[:-1]
    changes = (other_steps | other_moving).nonzero().flatten() + 1
    return [
        RowRange(
            rows=slice(first, last),
            params=[tensor[first:last] for tensor in trained_params],
            moments=[[tensor[first:last] for tensor in of_tensor] for of_tensor in trained_moments],
            step=steps[first : first + 1],
            moving=None,
            weight_decay=block.weight_decay,
        )
        for first, last in pairwise([0, *changes.tolist(), len(steps)])
        if moving[first]
    ]


def _trained(tensors: list[Tensor], block: Block) -> list[Tensor]:
    return [tensor for tensor, trains in zip(tensors, block.columns.trained, strict=True) if trains]


def _norms(grads: list[Tensor]) -> Tensor:
    """Compute the norm of each module over all its gradients, ``[G]``."""
    norms = [torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads]
    return torch.linalg.vector_norm(torch.stack(norms, 1), dim=1)


# --- SGD with momentum and AdamW over many networks at once ----------------------------------------------------------


@torch.no_grad()
def apply(
    ranges: list[list[RowRange]],
    grads: list[list[Tensor]],
    rate: Tensor,
    optimizer: HostOptimizer,
    by_step: bool,
) -> None:
    """Step the ranges of all blocks, in place.

    All is elementwise, so a row never sees another. Rows of equal step go through torch's fused AdamW where that rounds
    a row the same beside any others. The tests hold both ways to torch.optim, row by row.

    Args:
        ranges: By block.
        grads: By block and tensor, of whole blocks.
        rate: The learning rate, ``[1]``.
        optimizer: Its kind and settings.
        by_step: Rows of a range have equal steps.
    """
    # Tensors whose rows do not fill vector registers go one by one: fused, a row's last bits would depend on its place.
    fused = by_step and optimizer.name == "adamw"
    # By decay: parameters, gradients, means, variances and steps of one fused call.
    calls: dict[float, list[list[Tensor]]] = {}
    for block_ranges, block_grads in zip(ranges, grads, strict=True):
        for part in block_ranges:
            step = part.step[0].float() if fused else part.step
            for param, block_grad, moments in zip(
                part.params, block_grads, part.moments, strict=True
            ):
                grad = block_grad[part.rows]
                if not fused or param[0].numel() % LANES:
                    _step(part, param, grad, moments, rate, optimizer)
                    continue
                call = calls.setdefault(part.weight_decay, [[], [], [], [], []])
                for tensors, tensor in zip(
                    call, (param, grad.contiguous(), *moments, step), strict=True
                ):
                    tensors.append(tensor)
    # One call for each decay, as it is one number for all tensors of a call.
    for decay, (params, param_grads, means, variances, steps) in calls.items():
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            params, param_grads, means, variances, [], steps, lr=float(rate), beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1],
            weight_decay=decay, eps=ADAM_EPS, amsgrad=False, maximize=False,
        )  # fmt: skip


def _step(
    part: RowRange,
    param: Tensor,
    grad: Tensor,
    moments: list[Tensor],
    rate: Tensor,
    optimizer: HostOptimizer,
) -> None:
    """Step one tensor of a range; rows that do not move keep every bit."""
    # A mask would not do: 0 times a gradient that is NaN is NaN.
    wide = (-1, *[1] * (param.dim() - 1))
    before = None if part.moving is None else [tensor.clone() for tensor in (param, *moments)]
    if optimizer.name == "sgd":
        # v ← μ v + g + λ p; p ← p − η v (torch.optim.SGD, no dampening).
        [velocity] = moments
        velocity.mul_(optimizer.momentum).add_(grad)
        if part.weight_decay:
            velocity.add_(param, alpha=part.weight_decay)
        param.addcmul_(rate, velocity, value=-1)
    else:
        # torch.optim.AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101).
        mean, variance = moments
        beta1, beta2 = ADAM_BETAS
        step = part.step.view(wide)
        # float64, then rounded: the last bit of pow would depend on the row's place among others.
        correction1 = (1 - beta1**step).to(param.dtype)
        correction2 = (1 - beta2**step).sqrt().to(param.dtype)
        param.mul_(1 - rate * part.weight_decay)
        mean.mul_(beta1).add_(grad, alpha=1 - beta1)
        variance.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (variance.sqrt() / correction2).add_(ADAM_EPS)
        param.addcdiv_(mean * (rate / correction1), denominator, value=-1)
    if before is not None and part.moving is not None:
        for tensor, value in zip((param, *moments), before, strict=True):
            tensor.copy_(torch.where(part.moving.view(wide), tensor, value))
