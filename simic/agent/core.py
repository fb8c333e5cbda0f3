"""From what is seen to what heads and value read, one step at a time or over whole rows: encoder → memory → LayerNorm,
and beside it the encoder's own output, so that what is seen now need not pass through the memory.

The memory is an LSTM, a GRU or nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from simic import params
from simic.agent.spec import Observation, ObservationSpec

CELL = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class RecurrentState(NamedTuple):
    """What is remembered between steps: ``h [E, H]`` and, of an LSTM, ``c [E, H]``; unused parts have width 0."""

    h: Tensor
    c: Tensor

    def zeroed(self, rows: Tensor) -> "RecurrentState":
        """Zero in the rows ``[E]`` where an episode starts."""
        return RecurrentState(*(part.masked_fill(rows[:, None], 0.0) for part in self))

    def select(self, rows: Tensor) -> "RecurrentState":
        return RecurrentState(self.h[rows], self.c[rows])

    def split(self, parts: int) -> "list[RecurrentState]":
        """What several memories of equal size remember; ``joined`` is the way back."""
        return [RecurrentState(h, c) for h, c in zip(*(part.tensor_split(parts, dim=-1) for part in self), strict=True)]

    @classmethod
    def joined(cls, states: "Sequence[RecurrentState]") -> Self:
        return cls(*(torch.cat(parts, dim=-1) for parts in zip(*states, strict=True)))


@dataclass(frozen=True)
class Cut:
    """Rows ``[T, N]`` cut where episodes start: step (t, n) is at ``position`` of sequence ``number``."""

    position: Tensor
    number: Tensor
    length: int
    count: int

    @classmethod
    def at(cls, starts: Tensor) -> Self:
        """Sequences are numbered row by row; the first of a row may go on from before the rollout."""
        begins = starts.clone()
        begins[0] = True
        number = begins.t().flatten().cumsum(dim=0).view(begins.shape[1], -1).t() - 1
        time = torch.arange(len(starts), device=starts.device)[:, None].expand_as(starts)
        position = time - torch.where(begins, time, 0).cummax(dim=0).values
        return cls(position, number, int(position.max()) + 1, int(number.max()) + 1)

    def pad(self, x: Tensor) -> Tensor:
        """``[T, N, D]`` as ``[length, count, D]``, zero after the end of each sequence."""
        padded = x.new_zeros(self.length * self.count, x.shape[-1])
        return padded.index_copy(0, self._flat(), x.flatten(0, 1)).view(self.length, self.count, -1)

    def unpad(self, x: Tensor) -> Tensor:
        """``[length, count, D]`` back as ``[T, N, D]``."""
        return x.flatten(0, 1).index_select(0, self._flat()).view(*self.position.shape, -1)

    def first(self, state: RecurrentState) -> RecurrentState:
        """The state each sequence begins with: zero, except for those that begin with their row."""
        return RecurrentState(
            *(part.new_zeros(self.count, part.shape[1]).index_copy(0, self.number[0], part) for part in state)
        )

    def _flat(self) -> Tensor:
        return (self.position * self.count + self.number).flatten()


class Core(nn.Module):
    """``inputs`` wide in, ``width`` wide out."""

    def __init__(self, kind: Literal["lstm", "gru", "none"], inputs: int, units: int) -> None:
        super().__init__()
        self.kind = kind
        self.width = inputs if kind == "none" else units
        if kind != "none":
            self.rnn = nn.LSTM(inputs, units) if kind == "lstm" else nn.GRU(inputs, units)

    def initial_state(self, envs: int, like: Tensor) -> RecurrentState:
        """Zeros, with the type and device of ``like``."""
        h = 0 if self.kind == "none" else self.width
        return RecurrentState(like.new_zeros(envs, h), like.new_zeros(envs, self.width if self.kind == "lstm" else 0))

    def step(self, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """One step of N rows: ``[N, D]`` → ``[N, H]``; the cell without the machinery of sequences."""
        if self.kind == "none":
            return x, state
        weights = tuple(map(self.rnn.get_parameter, CELL))
        if self.kind == "gru":
            h = torch.gru_cell(x, state.h, *weights)
            return h, RecurrentState(h, state.c)
        h, c = torch.lstm_cell(x, list(state), *weights)
        return h, RecurrentState(h, c)

    def over(self, x: Tensor, state: RecurrentState, starts: Tensor | None) -> Tensor:
        """Whole rows: ``[T, N, D]`` → ``[T, N, H]`` in one fused call.

        ``starts [T, N]`` marks the first steps of episodes; None: there are none after the first step.
        """
        if self.kind == "none":
            return x
        if x.shape[1] == 0:
            return x.new_zeros(x.shape[0], 0, self.width)
        if starts is None:
            return self._sequence(x, state)
        cut = Cut.at(starts)
        return cut.unpad(self._sequence(cut.pad(x), cut.first(state.zeroed(starts[0]))))

    def _sequence(self, x: Tensor, state: RecurrentState) -> Tensor:
        h, c = state.h[None].contiguous(), state.c[None].contiguous()
        return self.rnn(x, (h, c) if self.kind == "lstm" else h)[0]


class Trunk(nn.Module):
    """The encoder is linear with a tanh, over the features and an embedding of each category. The last ``passed``
    features are read as they are, too.
    """

    def __init__(self, seen: ObservationSpec, sizes: params.Policy, passed: int = 0) -> None:
        super().__init__()
        if seen.categories:
            self.category = nn.Embedding(seen.cardinality + 1, sizes.embedding_units)
        self.encoder = nn.Linear(seen.features + seen.categories * sizes.embedding_units, sizes.encoder_units)
        self.core = Core(sizes.core, sizes.encoder_units, sizes.core_units)
        self.passed = passed
        self.width = self.core.width + (0 if sizes.core == "none" else sizes.encoder_units) + passed
        # What enters the core is bounded by the encoder's tanh. A LayerNorm there would keep the direction of a short
        # observation and lose its length (docs/history/experiments.md); so would one right behind it without a core.
        self.core_norm = nn.Identity() if sizes.core == "none" else nn.LayerNorm(self.core.width)

    def initial_state(self, envs: int) -> RecurrentState:
        """Nothing remembered."""
        return self.core.initial_state(envs, self.encoder.weight)

    def step(self, observation: Observation, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """z ``[E, H]`` of one more observation."""
        encoded = self._encode(observation)
        hidden, state = self.core.step(encoded, state)
        return self._read(encoded, hidden, observation), state

    def over(self, seen: Observation, state: RecurrentState, starts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Encoder's output, core's output and z ``[T, N, ·]`` of whole rows."""
        encoded = self._encode(seen)
        hidden = self.core.over(encoded, state, starts)
        return encoded, hidden, self._read(encoded, hidden, seen)

    def _read(self, encoded: Tensor, hidden: Tensor, seen: Observation) -> Tensor:
        """What heads and value read."""
        parts = [hidden] if self.core.kind == "none" else [encoded, self.core_norm(hidden)]
        if self.passed:
            parts.append(seen.features[..., -self.passed :].to(encoded.dtype))
        return torch.cat(parts, dim=-1) if len(parts) > 1 else hidden

    def _encode(self, observation: Observation) -> Tensor:
        x = observation.features.to(self.encoder.weight.dtype)
        if observation.categories.shape[-1]:
            x = torch.cat((x, self.category(observation.categories + 1).flatten(-2)), dim=-1)  # -1, none, is row 0
        return self.encoder(x).tanh()
