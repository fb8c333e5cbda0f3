"""Memories of a policy: what they keep between steps, and how they run over whole rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from simic import params
from simic.agent.gru import GatedRows
from simic.agent.transformer import GatedTransformer

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
