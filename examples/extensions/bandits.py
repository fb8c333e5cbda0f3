"""Bandits to be learned within an episode (RL², Duan et al. 2016, arXiv 1611.02779): a vector environment on tensors.

Every episode has new arms; what was pulled and paid is seen, so that a memory can explore and then exploit.
`simic run --params examples/bandits.yaml` trains on it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from simic import rng
from simic.envs.gym_rules import rule

ARMS = 5


class Bandits(VectorEnv):
    """``num_envs`` bandits of five arms that pay 1 or 0; all draws are hashes, so a state is a few numbers."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - gymnasium's own form

    def __init__(self, num_envs: int, pulls: int = 10) -> None:
        self.num_envs, self.pulls = num_envs, pulls
        self.single_observation_space = gymnasium.spaces.Box(0.0, 1.0, (ARMS + 1,))
        self.single_action_space = gymnasium.spaces.Discrete(ARMS)
        self.rows = torch.arange(num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict]:
        self.seed, self.episode = seed or 0, 0
        return self._begin(), {}

    def _begin(self) -> Tensor:
        self.pull, self.seen = 0, torch.zeros(self.num_envs, ARMS + 1)
        return self.seen

    def _drawn(self, what: int, count: int) -> Tensor:
        return rng.uniform(
            rng.key(self.seed, rng.Purpose.SYNTHETIC, self.episode, self.rows, what), (count,)
        )

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict]:
        means = self._drawn(0, ARMS).gather(1, actions[:, None])
        paid = (self._drawn(1 + self.pull, 1) < means).float()
        self.pull, self.seen = (
            self.pull + 1,
            torch.cat((torch.nn.functional.one_hot(actions, ARMS), paid), dim=1),
        )
        over = self.pull == self.pulls
        if over:
            self.episode += 1
            self._begin()
        ended = torch.full((self.num_envs,), over)
        return self.seen, paid[:, 0], ended, torch.zeros_like(ended), {}

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "seen": self.seen.clone(),
            "numbers": torch.tensor([self.seed, self.episode, self.pull]),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Tensor:
        self.seed, self.episode, self.pull = state["numbers"].tolist()
        self.seen = state["seen"]
        return self.seen


gymnasium.register("Bandits-v0", vector_entry_point=Bandits)


@rule("ucb1")
def ucb1(history: Sequence[np.ndarray], masks: Mapping[str, np.ndarray]) -> int:
    """Pull the arm with the highest upper bound (Auer et al. 2002), each arm once before."""
    seen = np.array(history)[1:]
    if not len(seen):
        return 0
    pulled, won = seen[:, :ARMS].sum(axis=0), (seen[:, :ARMS] * seen[:, ARMS:]).sum(axis=0)
    if (pulled == 0).any():
        return int(pulled.argmin())
    return int((won / pulled + 0.2 * np.sqrt(2 * math.log(len(seen)) / pulled)).argmax())
