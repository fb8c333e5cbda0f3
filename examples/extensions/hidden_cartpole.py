"""CartPole without velocities, whose motor must not push the same way four times: memory and masks in one task.

It is registered as HiddenCartPole-v0. `simic run --params examples/hidden_cartpole.yaml` trains on it.
"""

from collections.abc import Mapping, Sequence

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from simic.envs.gym_rules import rule

MOST_ALIKE = 4  # pushes to one side, one after the other


class HiddenCartPole(CartPoleEnv):
    """Position and angle are seen, velocities are not; a fifth push to the same side is forbidden."""

    def __init__(self) -> None:
        super().__init__()
        high = np.array([5.0, 0.5], dtype=np.float32)
        self.observation_space = gymnasium.spaces.Box(-high, high)
        self.pushes: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict]:
        self.pushes = []
        seen, info = super().reset(seed=seed, options=options)
        return seen[[0, 2]], info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.pushes = [*self.pushes, int(action)][-MOST_ALIKE:]
        seen, reward, terminated, truncated, info = super().step(action)
        return seen[[0, 2]], reward, terminated, truncated, info

    def action_masks(self) -> dict[str, np.ndarray]:
        """Return what is legal, by head."""
        legal = np.ones(2, dtype=bool)
        if len(self.pushes) == MOST_ALIKE and len(set(self.pushes)) == 1:
            legal[self.pushes[0]] = False
        return {"action_0": legal}


gymnasium.register("HiddenCartPole-v0", entry_point=HiddenCartPole, max_episode_steps=500)


@rule("lean")
def lean(history: Sequence[np.ndarray], masks: Mapping[str, np.ndarray]) -> int:
    """Push to the side that the pole falls to, as two angles show."""
    now, before = history[-1][1], history[-2][1] if len(history) > 1 else 0.0
    wanted = int(now + 5.0 * (now - before) > 0)
    return wanted if masks["action_0"][wanted] else 1 - wanted
