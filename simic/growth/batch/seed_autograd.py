"""Where the seeds of a slot leave the stacked features and join them again, with gradients written out.

Composed of single operations, every blueprint and operator would cost a full-sized array of zeros, a copy and a sum in
the backward pass. The formulas are those of ``networks.grafting``; rows are chosen by index, so nothing of a seed that
does not act reaches its host.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from simic.growth.batch.groups import SlotGroups
from simic.growth.life.vocabulary import Blend
from simic.growth.networks.grafting import blend, blend_gradients


def fork(h: Tensor, rows: Tensor, open_positions: Tensor) -> tuple[Tensor, Tensor]:
    """The features as they are, and what the seeds of ``rows [R]`` see, ``[R, B, …, C]``; rows differ, and only
    ``open_positions`` send a gradient back.
    """
    if not len(open_positions):
        return h, h.detach().index_select(0, rows)
    forked: tuple[Tensor, Tensor] = _Fork.apply(h, rows, open_positions)
    return forked


def join(h: Tensor, s: Tensor, x: Tensor, gate: Tensor | None, groups: SlotGroups) -> Tensor:
    """The features ``[streams, B, …, C]`` after all seeds ``s [R, B, …, C]`` of a slot, which saw ``x``, have joined by
    their operators; ``gate`` of those that have one.
    """
    joined: Tensor = _Join.apply(h, s, x, gate, groups)
    return joined


class _Fork(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, rows: Tensor, open_positions: Tensor) -> tuple[Tensor, Tensor]:
        ctx.rows, ctx.open = rows, open_positions
        return h, h.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (whole, part), rows = grads, ctx.rows
        if len(ctx.open) < len(rows):
            rows, part = rows[ctx.open], part.index_select(0, ctx.open)
        return whole.index_add(0, rows, part), None, None


class _Join(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, s: Tensor, x: Tensor, gate: Tensor | None, groups: SlotGroups) -> Tensor:
        ctx.groups = groups
        ctx.save_for_backward(h, s, x, gate)
        if not groups.blended:
            return h
        joined = h.clone()
        for item in groups.blended:
            own, grown, seen = _taken(h, s, x, item.streams, item.positions)
            gated = gate if item.operator is Blend.GATE else None
            joined.index_copy_(0, item.streams, blend(item.operator, own, grown, seen, item.alpha, gated))
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h, s, x, gate = ctx.saved_tensors
        grad = grads[0].contiguous()  # a mean over pixels hands back channels first: strided copies from here on
        grad_h, grad_x, grad_gate = grad, None, None
        grad_s = grad.index_select(0, ctx.groups.streams)  # of a seed in TRAINING it is the host's own
        if ctx.groups.blended:
            grad_h = grad.clone()
        for item in ctx.groups.blended:
            own, grown, seen = _taken(h, s, x, item.streams, item.positions)
            gated = gate if item.operator is Blend.GATE else None
            sent = grad_s.index_select(0, item.positions)
            of_h, of_s, of_x, of_gate = blend_gradients(item.operator, sent, own, grown, seen, item.alpha, gated)
            grad_h.index_copy_(0, item.streams, of_h)
            grad_s.index_copy_(0, item.positions, of_s)
            if of_x is not None:
                grad_x = x.new_zeros(x.shape).index_copy_(0, item.positions, of_x)
            grad_gate = of_gate if of_gate is not None else grad_gate
        return grad_h, grad_s, grad_x, grad_gate, None


def _taken(h: Tensor, s: Tensor, x: Tensor, streams: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the host's features, of the seeds' and of what these saw."""
    return h.index_select(0, streams), s.index_select(0, positions), x.index_select(0, positions)
