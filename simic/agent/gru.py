"""A gated recurrent unit over whole rows on a CPU (Cho et al. 2014, arXiv 1406.1078), in the form of torch.nn.GRU.

torch runs some ten operations for each step, and as many backward. Here what does not depend on the step before is one
product over all steps: the inputs' part of the gates, every gradient of a weight, the factors of the way back.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class GatedRows(torch.autograd.Function):
    """Compute the memory after each of T steps, ``[T, N, H]``.

    r, z = σ(W x + U h + b), n = tanh(W_n x + b_n + r (U_n h + c_n)), h' = n + z (h − n)
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        state: Tensor,
        input_weight: Tensor,
        hidden_weight: Tensor,
        input_bias: Tensor,
        hidden_bias: Tensor,
    ) -> Tensor:
        """Go over the rows.

        Args:
            ctx: Keeps what the gradient needs.
            x: Inputs ``[T, N, D]``.
            state: The memory before the first step, ``[N, H]``.
            input_weight: Of r, z and n, one under the other, ``[3 H, D]``.
            hidden_weight: Likewise, ``[3 H, H]``.
            input_bias: ``[3 H]``.
            hidden_bias: ``[3 H]``.
        """
        steps = x.shape[:2]
        by_r, by_z, by_n = (weight.t() for weight in hidden_weight.chunk(3))
        *gate_biases, candidate_bias = hidden_bias.chunk(3)

        # What the inputs say, of all steps at once; the memory's part is added step by step, in place.
        biases = list(input_bias.chunk(3))
        biases[:2] = [bias + added for bias, added in zip(biases[:2], gate_biases, strict=True)]
        r, z, n = (
            torch.addmm(bias, x.flatten(0, 1), weight.t()).view(*steps, -1)
            for bias, weight in zip(biases, input_weight.chunk(3), strict=True)
        )
        recalled = torch.empty_like(n)  # U_n h + c_n
        hidden = n.new_empty(steps[0] + 1, *state.shape)
        hidden[0] = state
        # Views of all steps at once: to index a tensor in each step costs as much as to add two.
        parts = (hidden[:-1], hidden[1:], r, z, n, recalled)
        views = (part.unbind() for part in parts)
        for h, h_after, r_t, z_t, n_t, recalled_t in zip(*views, strict=True):
            r_t.addmm_(h, by_r).sigmoid_()
            z_t.addmm_(h, by_z).sigmoid_()
            torch.addmm(candidate_bias, h, by_n, out=recalled_t)
            n_t.addcmul_(r_t, recalled_t).tanh_()
            torch.lerp(n_t, h, z_t, out=h_after)
        ctx.save_for_backward(x, input_weight, hidden_weight, r, z, n, recalled, hidden)
        return hidden[1:]

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - torch passes it by position
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, ...]:
        """Go back over the rows."""
        x, input_weight, hidden_weight, r, z, n, recalled, hidden = ctx.saved_tensors
        before = hidden[:-1]

        # How h' moves with the arguments of z and n, and n's argument with that of r; in the loop, in place, they
        # become the gradients of these arguments, and r that of U_n h + c_n.
        rest = 1 - z
        of_z = (before - n).mul_(z).mul_(rest)
        of_n = torch.addcmul(rest, rest, n * n, value=-1)
        of_r = torch.addcmul(r, r, r, value=-1).mul_(recalled)
        of_recalled = r.clone()
        of_h = torch.zeros_like(hidden[0])
        by_r, by_z, by_n = hidden_weight.chunk(3)
        parts = (gradients[0], z, of_r, of_z, of_n, of_recalled)
        views = (part.unbind()[::-1] for part in parts)
        for gradient, z_t, of_r_t, of_z_t, of_n_t, of_recalled_t in zip(*views, strict=True):
            of_h = of_h + gradient
            of_z_t.mul_(of_h)
            of_n_t.mul_(of_h)
            of_r_t.mul_(of_n_t)
            of_recalled_t.mul_(of_n_t)
            of_h = of_h.mul_(z_t).addmm_(of_r_t, by_r).addmm_(of_z_t, by_z)
            of_h = of_h.addmm_(of_recalled_t, by_n)

        # Inputs and weights, of all steps at once.
        of_r, of_z, of_n, of_recalled = (
            part.flatten(0, 1) for part in (of_r, of_z, of_n, of_recalled)
        )
        by_r, by_z, by_n = input_weight.chunk(3)
        of_x = (of_r @ by_r).addmm_(of_z, by_z).addmm_(of_n, by_n).view_as(x)
        x = x.flatten(0, 1)
        before = before.flatten(0, 1)
        of_arguments = (of_r, of_z, of_n)
        of_memory = (of_r, of_z, of_recalled)
        sums = [part.sum(dim=0) for part in (*of_arguments, of_recalled)]
        return (
            of_x,
            of_h,
            torch.cat([part.t() @ x for part in of_arguments]),
            torch.cat([part.t() @ before for part in of_memory]),
            torch.cat(sums[:3]),
            torch.cat((*sums[:2], sums[3])),
        )
