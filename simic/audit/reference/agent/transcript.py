"""One episode of all environments, as the environments saw it: what they gave and what they were told."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from simic.audit.reference.agent.interface import Mask


@dataclass(frozen=True)
class Transcript:
    """T steps of E environments, none of which begins anew before the last has ended.

    ``features [T+1, E, F]`` float64, ``categories [T+1, E, C]``, what the critic alone is ``told [T+1, E, n]`` and
    ``masks`` ``[T+1, E, …]`` by name before every step and after the last;
    ``actions [T, E, heads]``; ``rewards [T, E]`` float64; ``terminated`` and ``truncated [T, E]``.
    """

    iteration: int
    env_ids: tuple[int, ...]
    features: Tensor
    categories: Tensor
    told: Tensor
    masks: Mapping[str, Tensor]
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor

    @property
    def steps(self) -> int:
        return len(self.actions)

    @property
    def envs(self) -> int:
        return len(self.env_ids)

    def valid(self) -> Tensor:
        """Bool ``[T, E]``: steps before which nothing has ended."""
        valid = torch.ones(self.steps, self.envs, dtype=torch.bool)
        for t in range(1, self.steps):
            valid[t] = valid[t - 1] & ~(self.terminated[t - 1] | self.truncated[t - 1])
        return valid

    def masks_of(self, env: int) -> list[dict[str, Mask]]:
        """Of one environment, moment by moment, as lists."""
        lists = {name: mask[:, env].tolist() for name, mask in self.masks.items()}
        return [{name: mask[t] for name, mask in lists.items()} for t in range(self.steps + 1)]
