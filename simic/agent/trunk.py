"""From what is seen to what heads and value read: encoder → core → LayerNorm."""

import torch
from torch import Tensor, nn

from simic import params
from simic.agent.core import Core, RecurrentState
from simic.agent.spec import Observation, ObservationSpec


class Trunk(nn.Module):
    """The encoder is linear with a tanh, over the features and an embedding of each category."""

    def __init__(self, seen: ObservationSpec, sizes: params.Policy) -> None:
        super().__init__()
        if seen.categories:
            self.category = nn.Embedding(seen.cardinality + 1, sizes.embedding_units)
        self.encoder = nn.Linear(seen.features + seen.categories * sizes.embedding_units, sizes.encoder_units)
        self.core = Core(sizes.core, sizes.encoder_units, sizes.core_units)
        self.width = self.core.width
        # What enters the core is bounded by the encoder's tanh. A LayerNorm there would keep the direction of a short
        # observation and lose its length (docs/history/experiments.md), and so would one behind it without a core.
        self.core_norm = nn.Identity() if sizes.core == "none" else nn.LayerNorm(self.width)

    def initial_state(self, envs: int) -> RecurrentState:
        """Nothing remembered."""
        return self.core.initial_state(envs, self.encoder.weight)

    def step(self, observation: Observation, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """z ``[E, H]`` of one more observation."""
        hidden, state = self.core.step(self._encode(observation), state)
        return self.core_norm(hidden), state

    def over(self, seen: Observation, state: RecurrentState, starts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Encoder's output, core's output and z ``[T, N, ·]`` of whole rows."""
        encoded = self._encode(seen)
        hidden = self.core.over(encoded, state, starts)
        return encoded, hidden, self.core_norm(hidden)

    def _encode(self, observation: Observation) -> Tensor:
        x = observation.features.to(self.encoder.weight.dtype)
        if observation.categories.shape[-1]:
            x = torch.cat((x, self.category(observation.categories + 1).flatten(-2)), dim=-1)  # -1, none, is row 0
        return self.encoder(x).tanh()
