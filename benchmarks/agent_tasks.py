"""Define the tasks on which the agent is compared with its peers, and the settings that all of them share."""

from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformObservation

ENVS = 8
ROLLOUT = 128
MINIBATCHES = 4
# Of every layer and of the LSTM.
UNITS = 64
# The defaults of Stable-Baselines3, which all algorithms have.
SHARED = {
    "epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
}
# The same for everybody.
GRID = [{"learning_rate": rate} for rate in (3e-4, 1e-3, 3e-3)]
# Played greedily after training.
EPISODES = 24


def without_velocities() -> gymnasium.Env:
    """Show CartPole's positions alone: how fast it falls must be remembered."""
    env = gymnasium.make("CartPole-v1")
    # The position and the angle, of position, velocity, angle, velocity.
    rows = [0, 2]
    assert isinstance(env.observation_space, Box)
    space = Box(env.observation_space.low[rows], env.observation_space.high[rows])
    return TransformObservation(env, lambda observation: observation[rows], space)


class PickLegal(gymnasium.Env):
    """Pay 1 for the legal choice with the largest number: six numbers are seen, three choices are legal, 50 times."""

    CHOICES = 6
    LEGAL = 3
    LENGTH = 50
    observation_space = Box(-1.0, 1.0, (CHOICES,))
    action_space = Discrete(CHOICES)

    def _look(self) -> np.ndarray:
        # Drawn anew in each step: there is nothing to remember.
        self.numbers = self.np_random.uniform(-1, 1, self.CHOICES).astype(np.float32)
        self.legal = np.zeros(self.CHOICES, dtype=bool)
        self.legal[self.np_random.choice(self.CHOICES, self.LEGAL, replace=False)] = True
        return self.numbers

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        # Refused and not ignored: who masks wrongly would otherwise only look slow.
        if not self.legal[action]:
            raise ValueError(f"{action} is not legal")
        # An illegal choice never wins, whatever its number.
        best = np.where(self.legal, self.numbers, -np.inf).argmax()
        self.time += 1
        reward = float(action == best)
        return self._look(), reward, self.time == self.LENGTH, False, {}

    def action_masks(self) -> np.ndarray:
        return self.legal


class Maze(gymnasium.Env):
    """Pay 1 for arriving in the corner from any cell, −0.02 for every step; walls and edges are forbidden."""

    WALLS = ("..#....", ".##.##.", "....#..", ".##...#", "..#.#..", "#...##.", "..#....")
    SIDE = 7
    LENGTH = 80
    MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
    observation_space = Box(0.0, 1.0, (SIDE * SIDE,))
    action_space = Discrete(4)

    def _free(self, row: int, column: int) -> bool:
        inside = 0 <= row < self.SIDE and 0 <= column < self.SIDE
        return inside and self.WALLS[row][column] == "."

    def _look(self) -> np.ndarray:
        # The cell one-hot: walls are only known by the masks.
        observation = np.zeros(self.SIDE * self.SIDE, dtype=np.float32)
        observation[self.cell[0] * self.SIDE + self.cell[1]] = 1.0
        return observation

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        # Any free cell but the goal, in which the episode would be over.
        goal = (self.SIDE - 1, self.SIDE - 1)
        cells = [
            (r, c)
            for r in range(self.SIDE)
            for c in range(self.SIDE)
            if self._free(r, c) and (r, c) != goal
        ]
        self.goal = goal
        self.time = 0
        self.cell = cells[self.np_random.integers(len(cells))]
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if not self.action_masks()[action]:
            raise ValueError(f"{action} is not legal")
        self.cell = (self.cell[0] + self.MOVES[action][0], self.cell[1] + self.MOVES[action][1])
        self.time += 1
        # The price of a step makes the shortest way the best one.
        arrived = self.cell == self.goal
        return self._look(), float(arrived) - 0.02, arrived, self.time == self.LENGTH, {}

    def action_masks(self) -> np.ndarray:
        return np.array(
            [self._free(self.cell[0] + row, self.cell[1] + column) for row, column in self.MOVES]
        )


@dataclass(frozen=True)
class Task:
    """A task; ``rivals`` are our algorithm and the peer that it is compared with."""

    make: Callable[[], gymnasium.Env]
    solved: float  # mean return of 20 episodes in training
    steps: int
    rivals: tuple[str, str]

    @property
    def margin(self) -> float:
        """Tell how far behind counts as not behind: 5 % of the threshold."""
        return 0.05 * abs(self.solved)


FEEDFORWARD = ("simic", "sb3 PPO")
RECURRENT = ("simic LSTM", "sb3-contrib RecurrentPPO")
MASKED = ("simic", "sb3-contrib MaskablePPO")
TASKS = {
    "CartPole-v1": Task(lambda: gymnasium.make("CartPole-v1"), 475.0, 60_000, FEEDFORWARD),
    "Acrobot-v1": Task(lambda: gymnasium.make("Acrobot-v1"), -100.0, 100_000, FEEDFORWARD),
    "CartPole without velocities": Task(without_velocities, 475.0, 100_000, RECURRENT),
    "Maze": Task(Maze, 0.8, 30_000, MASKED),
    "PickLegal": Task(PickLegal, 45.0, 100_000, MASKED),
}
