"""All parameters that train in one epoch: gathered once, updated in place, scattered at the end.

They come in blocks of alike modules (the hosts; the seeds of one blueprint at one slot; their gates). A parameter of a
block is one contiguous tensor ``[G, *shape]``, so that a product of all its modules is one batched call. Each module
has its own step count, clip and switch.
"""

from collections.abc import Sequence
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

MOMENTS: dict[str, tuple[str, ...]] = {"sgd": ("momentum",), "adamw": ("mean", "variance")}


@dataclass(frozen=True)
class Rows:
    """Where parameters live between epochs, a row for each host: ``param [E, n]``, ``step [E]`` float64 (whole numbers:
    updates done) and moments of those that train, by name.
    """

    tensors: dict[str, Tensor]

    @classmethod
    def zeros(
        cls,
        envs: int,
        columns: RowLayout,
        moments: tuple[str, ...],
        device: torch.device,
    ) -> Self:
        """Allocate rows that nothing stands in yet.

        Args:
            envs: How many hosts, E.
            columns: Of each row.
            moments: Names of the optimizer's moments.
            device: Where they are.
        """
        step = torch.zeros(envs, dtype=torch.float64, device=device)
        param = torch.zeros(envs, columns.width, device=device)
        widths = {name: torch.zeros(envs, columns.params, device=device) for name in moments}
        return cls({"param": param, "step": step} | widths)

    @property
    def param(self) -> Tensor:
        return self.tensors["param"]

    def start(self, rows: Tensor, param: Tensor) -> None:
        """Put new parameters into the rows ``[R]``; moments and step start from zero."""
        self.param.index_copy_(0, rows, param)
        for name, tensor in self.tensors.items():
            if name != "param":
                tensor.index_fill_(0, rows, 0.0)

    def clone(self) -> Self:
        return type(self)({name: tensor.clone() for name, tensor in self.tensors.items()})

    def copy_where(self, hosts: Tensor, source: Self) -> None:
        """Take the rows of ``source`` where ``hosts [E]`` bool."""
        for name, tensor in self.tensors.items():
            values = source.tensors[name]
            # On another device, asking which rows are meant would make this one wait.
            if hosts.device.type != "cpu":
                chosen = hosts.view(-1, *[1] * (tensor.dim() - 1))
                tensor.copy_(torch.where(chosen, values, tensor))
            elif hosts.all():
                tensor.copy_(values)
            elif len(rows := hosts.nonzero().flatten()):
                tensor.index_copy_(0, rows, values.index_select(0, rows))


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
        return self.columns.unpack(self.store.param.index_select(0, self.hosts))


@dataclass(frozen=True)
class RowRange:
    """Neighbouring rows of a block that step together: views of the tensors that train."""

    params: list[Tensor]
    grads: list[Tensor]
    moments: list[list[Tensor]]  # of each tensor, in the order of MOMENTS
    step: Tensor  # float64, updates done: [rows], or [1] where all have trained equally long
    moving: Tensor | None  # bool [rows]; None: all
    weight_decay: float


class BlockTensors:
    """What an epoch has of a block, gathered: what trains lies in one buffer, tensor after tensor of all modules.

    Args:
        block: Its rows and where they live.
        steps: Of its modules ``[G]``, a view of the arena's.
        moving: Which of them train, bool ``[G]``.
        optimizer: Kind of its moments.
        by_step: Rows of one range have equal steps.
    """

    def __init__(
        self,
        block: Block,
        steps: Tensor,
        moving: Tensor,
        optimizer: str,
        by_step: bool,
    ) -> None:
        self.block = block
        self.steps = steps
        columns = block.columns
        store = block.store.tensors
        # Gathered into tensors of their own, so that an epoch that fails has changed nothing.
        shapes = columns.trained_shapes
        sources = {
            "param": columns.trained_parts(store["param"]),
            **{name: store[name].split(columns.trained_sizes, 1) for name in MOMENTS[optimizer]},
        }
        self._sources = sources
        buffers = [
            store["param"].new_zeros(len(steps) * columns.params)
            for _ in range(2 + len(MOMENTS[optimizer]))
        ]
        self.trained, self.grads, *self.moments = (
            _views(buffer, len(steps), shapes) for buffer in buffers
        )
        gathered = (self.trained, *self.moments)
        for parts, views in zip(sources.values(), gathered, strict=True):
            for part, view in zip(parts, views, strict=True):
                rows = view.flatten(1)
                torch.index_select(part, 0, block.hosts, out=rows)
        self.ranges = self._ranges(moving, buffers, by_step)

        # All tensors of the modules, in order: what was fitted to data once is not in the buffers.
        views = iter(self.trained)
        self.params = [
            next(views) if trains else part.index_select(0, block.hosts).view(len(steps), *shape)
            for part, shape, trains in zip(
                store["param"].split(columns.sizes, 1), columns.shapes, columns.trained, strict=True
            )
        ]

    def _ranges(self, moving: Tensor, buffers: list[Tensor], by_step: bool) -> list[RowRange]:
        """Cut the block into a range for each run of rows of equal step that move; without ``by_step`` it is one."""
        decay = self.block.weight_decay
        moments = [list(views) for views in zip(*self.moments, strict=True)]
        # One range, in which rows that are frozen are put back after the step.
        if not by_step:
            moves = moving if self.block.frozen.any() else None
            return [RowRange(self.trained, self.grads, moments, self.steps, moves, decay)]
        # A range ends where the step count changes: torch's fused kernel takes one count for all of a tensor.
        other_steps = self.steps[1:] != self.steps[:-1]
        other_moving = moving[1:] != moving[:-1]
        changes = (other_steps | other_moving).nonzero().flatten() + 1
        bounds = [0, *changes.tolist(), len(self.steps)]
        # All together: then the buffers are tensors.
        if len(bounds) == 2 and moving[0]:
            param, grad, *others = buffers
            return [RowRange([param], [grad], [others], self.steps[:1], None, decay)]
        return [
            RowRange(
                params=[tensor[first:last] for tensor in self.trained],
                grads=[tensor[first:last] for tensor in self.grads],
                moments=[[tensor[first:last] for tensor in of_tensor] for of_tensor in moments],
                step=self.steps[first : first + 1],
                moving=None,
                weight_decay=decay,
            )
            for first, last in pairwise(bounds)
            if moving[first]
        ]

    def norms(self) -> Tensor:
        """Compute the norm of each module over all its gradients, ``[G]``."""
        # Of each tensor, then of these.
        norms = [torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in self.grads]
        by_tensor = torch.stack(norms, 1)
        return torch.linalg.vector_norm(by_tensor, dim=1)

    def scatter(self) -> None:
        """Write parameters, moments and steps back to where they live."""
        # What does not train is as it was.
        hosts = self.block.hosts
        self.block.store.tensors["step"].index_copy_(0, hosts, self.steps)
        for parts, views in zip(self._sources.values(), (self.trained, *self.moments), strict=True):
            for part, view in zip(parts, views, strict=True):
                part.index_copy_(0, hosts, view.detach().flatten(1))


class Arena:
    """Owns the parameters of one epoch, and gradients and moments of those that train.

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
        self.blocks = [
            BlockTensors(block, steps, moving, optimizer.name, self._by_step)
            for block, steps, moving in zip(
                blocks, self._steps.split(self._rows), self._moving.split(self._rows), strict=True
            )
        ]

        self._ranges = [part for tensors in self.blocks for part in tensors.ranges]
        # One for each decay, as it is one number for all tensors of a call.
        self._calls: list[FusedCall] | None = None
        if self._by_step and optimizer.name == "adamw":
            self._calls = [
                FusedCall(decay, [part for part in self._ranges if part.weight_decay == decay])
                for decay in dict.fromkeys(part.weight_decay for part in self._ranges)
            ]

    @torch.no_grad()
    def update(self) -> list[Tensor]:
        """Clip the gradients of each module apart, and step.

        Returns:
            The norms before clipping of each block, ``[G]``.
        """
        norms = [tensors.norms() for tensors in self.blocks]
        # A gradient of a larger norm is brought to it; NaN stays NaN, in its own row.
        limit = self.optimizer.max_grad_norm
        scales = (limit / (torch.cat(norms) + CLIP_EPS)).clamp(max=1.0)
        if not self._by_step or not (scales >= 1).all():
            for tensors, scale in zip(self.blocks, scales.split(self._rows), strict=True):
                for grad in tensors.grads:
                    wide = (-1, *[1] * (grad.dim() - 1))
                    grad *= scale.view(wide)
        # A frozen row has made no update: its bias corrections stand still.
        self._steps += self._moving
        if self._calls is not None:
            for call in self._calls:
                call.step(float(self._rate))
            return norms
        for part in self._ranges:
            for param, grad, moments in zip(part.params, part.grads, part.moments, strict=True):
                _step(part, param, grad, moments, self._rate, self.optimizer)
        return norms

    def scatter(self) -> None:
        """Write everything back to where it lives."""
        for tensors in self.blocks:
            tensors.scatter()


def _views(buffer: Tensor, rows: int, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """View a buffer as one contiguous tensor ``[G, *shape]`` after the other."""
    parts = buffer.split([rows * shape.numel() for shape in shapes])
    return [part.view(rows, *shape) for part, shape in zip(parts, shapes, strict=True)]


# --- SGD with momentum and AdamW over many networks at once ----------------------------------------------------------


class FusedCall:
    """Tensors that torch's fused AdamW steps in one call, of ranges of rows that have trained equally long."""

    def __init__(self, weight_decay: float, ranges: list[RowRange]) -> None:
        self._decay = weight_decay
        self._steps = [part.step[0].float() for part in ranges]
        # Parameters, gradients, means, variances and steps.
        columns: list[list[Tensor]] = [[], [], [], [], []]
        for part, step in zip(ranges, self._steps, strict=True):
            for param, grad, moments in zip(part.params, part.grads, part.moments, strict=True):
                for column, tensor in zip(columns, (param, grad, *moments, step), strict=True):
                    column.append(tensor)
        self._columns = columns

    def step(self, learning_rate: float) -> None:
        for step in self._steps:
            step += 1.0
        # Lists of tensors side by side, as torch wants them.
        params, grads, means, variances, steps = self._columns
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            params, grads, means, variances, [], steps, lr=learning_rate, beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1],
            weight_decay=self._decay, eps=ADAM_EPS, amsgrad=False, maximize=False,
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
