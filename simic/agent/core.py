"""Memories of a policy: what they keep between steps, and how they run over whole rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from simic import params
from simic.agent.transformer import GatedTransformer
from simic.errors import SimicError

# Of torch's own cells, whose layer is run step by step too.
CELL = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class RecurrentState(NamedTuple):
    """What is remembered between steps: ``h [E, H]`` and, of an LSTM, ``c [E, H]``; unused parts have width 0.

    Of a transformer h holds the keys and values of its window, and c how many steps of that are known.
    """

    h: Tensor
    c: Tensor

    def zeroed(self, rows: Tensor) -> "RecurrentState":
        """Forget in the rows ``[E]`` where an episode starts."""
        return RecurrentState(*(part.masked_fill(rows[:, None], 0.0) for part in self))

    def select(self, rows: Tensor) -> "RecurrentState":
        return RecurrentState(self.h[rows], self.c[rows])

    def split(self, parts: int) -> "list[RecurrentState]":
        """Split into several memories of equal size; ``joined`` is the way back."""
        return [
            RecurrentState(h, c)
            for h, c in zip(*(part.tensor_split(parts, dim=-1) for part in self), strict=True)
        ]

    @classmethod
    def joined(cls, states: "Sequence[RecurrentState]") -> Self:
        return cls(*(torch.cat(parts, dim=-1) for parts in zip(*states, strict=True)))


def refuse_other_state(state: Any, expected: RecurrentState) -> None:
    """Raise SimicError for what is not a memory of the types and shapes of another one."""
    # By position a mask may come in its place; and the memory of another policy may fit in part.
    found = _described(state) if isinstance(state, RecurrentState) else type(state).__name__
    if found != _described(expected):
        raise SimicError(
            f"state is {found}: must be {_described(expected)}, as the call before returned it, or None"
        )


def _described(state: RecurrentState) -> str:
    parts = [
        f"{getattr(part, 'dtype', type(part))} {list(getattr(part, 'shape', ()))}" for part in state
    ]
    return f"RecurrentState of {' and '.join(parts)}"


@dataclass(frozen=True)
class Sequences:
    """Rows ``[T, N]`` cut where episodes start: step (t, n) is at ``position`` of sequence ``number``."""

    position: Tensor
    number: Tensor
    length: int
    count: int

    @classmethod
    def cut_at(cls, starts: Tensor) -> Self:
        """Number the sequences row by row; the first of a row may go on from before the rollout."""
        # Row by row, as [N, T]: the running count of beginnings is the number of the sequence.
        begins = starts.clone()
        begins[0] = True
        by_row = begins.t()
        number = by_row.flatten().cumsum(dim=0).view(by_row.shape).t() - 1
        # Steps since the last beginning.
        time = torch.arange(len(starts), device=starts.device)[:, None].expand_as(starts)
        position = time - torch.where(begins, time, 0).cummax(dim=0).values
        return cls(position, number, int(position.max()) + 1, int(number.max()) + 1)

    def pad(self, x: Tensor) -> Tensor:
        """Turn ``[T, N, D]`` into ``[length, count, D]``, zero after the end of each sequence."""
        padded = x.new_zeros(self.length * self.count, x.shape[-1])
        return padded.index_copy(0, self._flat(), x.flatten(0, 1)).view(self.length, self.count, -1)

    def unpad(self, x: Tensor) -> Tensor:
        """Turn ``[length, count, D]`` back into ``[T, N, D]``."""
        return x.flatten(0, 1).index_select(0, self._flat()).view(*self.position.shape, -1)

    def first_state(self, state: RecurrentState) -> RecurrentState:
        """Give each sequence the state it begins with: that of its row for the first of a row, else zero."""
        first = []
        for part in state:
            zeros = part.new_zeros(self.count, part.shape[1])
            first.append(zeros.index_copy(0, self.number[0], part))
        return RecurrentState(*first)

    def _flat(self) -> Tensor:
        return (self.position * self.count + self.number).flatten()


class Core(nn.Module):
    """A memory, ``inputs`` wide in and ``width`` wide out; ``window`` is how many steps a transformer sees."""

    def __init__(self, kind: params.CoreKind, inputs: int, units: int, window: int) -> None:
        super().__init__()
        self.kind = kind
        self.width = inputs if kind == "none" else units
        # Of h and c; a transformer keeps keys and values of its window, and their count.
        self.state_widths = {
            "lstm": (units, units),
            "gru": (units, 0),
            "transformer": (2 * units * window, 1),
            "none": (0, 0),
        }[kind]
        if kind == "transformer":
            self.transformer = GatedTransformer(inputs, units, window)
        elif kind != "none":
            self.rnn = nn.LSTM(inputs, units) if kind == "lstm" else nn.GRU(inputs, units)

    def initial_state(self, envs: int, like: Tensor) -> RecurrentState:
        """Make an empty memory of the type and on the device of ``like``."""
        return RecurrentState(*(like.new_zeros(envs, width) for width in self.state_widths))

    def step(self, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Take one step of N rows, ``[N, D]`` → ``[N, H]``, with the bare cell."""
        if self.kind == "none":
            return x, state
        if self.kind == "transformer":
            output, *memory = self.transformer(x[None], *state, None)
            return output[0], RecurrentState(*memory)
        weights = tuple(map(self.rnn.get_parameter, CELL))
        if self.kind == "gru":
            h = torch.gru_cell(x, state.h, *weights)
            return h, RecurrentState(h, state.c)
        h, c = torch.lstm_cell(x, list(state), *weights)
        return h, RecurrentState(h, c)

    def unroll(self, x: Tensor, state: RecurrentState, starts: Tensor | None) -> Tensor:
        """Go over whole rows in one fused call.

        Args:
            x: ``[T, N, D]``.
            state: The memory before the first step, ``[N, H]``.
            starts: The first steps of episodes, bool ``[T, N]``; None: there are none after the first step.

        Returns:
            The output of every step ``[T, N, H]``.
        """
        if self.kind == "none":
            return x
        # A process may hold no environment of a minibatch, and fused layers refuse empty batches.
        if x.shape[1] == 0:
            return x.new_zeros(x.shape[0], 0, self.width)
        if self.kind == "transformer":
            return self.transformer(x, *state, starts)[0]
        if starts is None:
            return self._sequence(x, state)
        # A fused call cannot empty its memory inside a row: rows are cut where episodes start, and each piece becomes a
        # row of its own.
        sequences = Sequences.cut_at(starts)
        first_state = sequences.first_state(state.zeroed(starts[0]))
        return sequences.unpad(self._sequence(sequences.pad(x), first_state))

    def _sequence(self, x: Tensor, state: RecurrentState) -> Tensor:
        if self.kind == "gru" and x.device.type == "cpu":
            weights = map(self.rnn.get_parameter, CELL)
            return GatedRows.apply(x, state.h, *weights)  # pyright: ignore[reportReturnType]
        # Torch's layers want a leading dimension for stacked layers, of which there is one.
        h = state.h[None].contiguous()
        memory = (h, state.c[None].contiguous()) if self.kind == "lstm" else h
        return self.rnn(x, memory)[0]


class GatedRows(torch.autograd.Function):
    """Compute the memory of a gated recurrent unit (Cho et al. 2014, arXiv 1406.1078) after each of T steps on a CPU,
    ``[T, N, H]``, in the form of torch.nn.GRU.

    torch runs some ten operations for each step, and as many backward. Here what does not depend on the step before is
    one product over all steps: the inputs' part of the gates, every gradient of a weight, the factors of the way back.

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
