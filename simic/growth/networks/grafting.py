"""How a seed joins its host: which gradients flow, and the blend operators.

Features are ``[R, B, …, C]`` with R hosts (or streams). Nothing here multiplies an absent or inactive seed by 0: rows
are chosen by index, so an Inf in a seed that does not act reaches nobody.
"""

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from simic.growth.life.vocabulary import Blend
from simic.growth.networks.layers import Samplewise

MIN_GATE_UNITS = 8


class Gate(Samplewise):
    """Per-sample amplitude in (0, 1): mean pool → linear → ReLU → linear → sigmoid; ``[B, C, …] → [B, 1]``."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        units = max(MIN_GATE_UNITS, shape[0] // 4)
        self.hidden = nn.Linear(shape[0], units)
        self.out = nn.Linear(units, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.flatten(2).mean(-1) if x.dim() > 2 else x
        return torch.sigmoid(self.out(torch.relu(self.hidden(pooled))))


class TokenGate(Samplewise):
    """The gate of each position by itself, ``[B, L, D] → [B, L, 1]``: a mean over positions would show each the ones
    after it.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        units = max(MIN_GATE_UNITS, shape[-1] // 4)
        self.hidden = nn.Linear(shape[-1], units)
        self.out = nn.Linear(units, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.out(torch.relu(self.hidden(x))))


class _SeedInput(Function):
    """Rows of the host's features; the gradient flows back from the positions in ``open`` alone."""

    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, rows: Tensor, open_positions: Tensor) -> Tensor:
        ctx.save_for_backward(rows, open_positions)
        ctx.hosts = h.shape[0]  # type: ignore[attr-defined]  # autograd's own way to keep a number
        return h.index_select(0, rows)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        rows, positions = ctx.saved_tensors  # type: ignore[attr-defined]
        shape = list(grads[0].shape)
        shape[0] = ctx.hosts  # type: ignore[attr-defined]
        grad = grads[0].new_zeros(shape)
        grad.index_copy_(0, rows[positions], grads[0].index_select(0, positions))
        return grad, None, None


class _StraightThrough(Function):
    """Returns h itself and hands its gradient to both: the seed learns from a loss it does not yet change.

    Not h + s − stopgrad(s): that is NaN when s is Inf, and rounds when it is not.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, s: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return h

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (rows,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grads[0], grads[0].index_select(0, rows), None


def seed_input(h: Tensor, rows: Tensor, open_positions: Tensor) -> Tensor:
    """What the seeds of ``rows [R]`` see: ``[R, B, …, C]``; only ``open_positions`` are not isolated."""
    if not len(open_positions):
        return h.detach().index_select(0, rows)
    if len(open_positions) == len(rows):
        return h.index_select(0, rows)
    taken: Tensor = _SeedInput.apply(h, rows, open_positions)
    return taken


def straight_through(h: Tensor, s: Tensor, rows: Tensor) -> Tensor:
    """h, with the gradient at ``rows`` also given to s ``[len(rows), B, …, C]``."""
    joined: Tensor = _StraightThrough.apply(h, s, rows)
    return joined


def blend(operator: Blend, h: Tensor, s: Tensor, x: Tensor, alpha: Tensor, gate: Tensor | None) -> Tensor:
    """The blended features, ``[R, B, …, C]``; ``alpha [R]``, ``gate [R, B, 1]`` or ``[R, B, L, 1]``;
    exactly h at alpha 0.

    ``x`` is what the seed saw (detached under isolation), so MULTIPLY's tanh adds no gradient to an isolated host.
    """
    amplitude = alpha.view(-1, *[1] * (h.dim() - 1))
    if operator is Blend.MULTIPLY:
        return h * (1 + amplitude * torch.tanh(s - x))
    if gate is not None:
        amplitude = amplitude * gate.view(*gate.shape[:-1], *[1] * (h.dim() - gate.dim() + 1))
    return torch.lerp(h, s, amplitude)
