"""Define the tasks on which the agent is compared with its peers, and the settings that all of them share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.wrappers import (
    DtypeObservation,
    FilterObservation,
    FlattenObservation,
    TransformObservation,
)

from benchmarks.memory import Corridor, MaskedCorridor
from examples.extensions.hybrid import MOVES, REACH, Platform

# Of every layer and of the LSTM.
UNITS = 64
# What all algorithms have: the defaults of Stable-Baselines3, in eight environments.
SHARED = {
    "envs": 8,
    "rollout_steps": 128,
    "minibatches": 4,
    "epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "entropy_coef": 0.0,
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


class PlatformOfNumbers(gymnasium.ActionWrapper):
    """Platform for who has no hybrid actions: the largest of three numbers is the move, three more are the reaches."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.action_space = Box(-1.0, 1.0, (2 * len(MOVES),))

    def action(self, action: np.ndarray) -> dict[str, Any]:
        # Stable-Baselines3 advises bounds of −1 and 1.
        scores, reaches = np.split(action, 2)
        return platform_action(int(scores.argmax()), (reaches + 1.0) / 2.0)


class PlatformOfLevels(gymnasium.ActionWrapper):
    """Platform for who has no hybrid actions: a choice of the move, and one of eleven reaches for each move."""

    LEVELS = 11

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.action_space = MultiDiscrete([len(MOVES)] + len(MOVES) * [self.LEVELS])

    def action(self, action: np.ndarray) -> dict[str, Any]:
        return platform_action(int(action[0]), action[1:] / (self.LEVELS - 1))


def platform_action(move: int, shares: np.ndarray) -> dict[str, Any]:
    """Make Platform's action of a move and the share of its reach, 0 … 1, of each move."""
    # All reaches are sent; the environment reads that of the move.
    reaches = {
        name: np.array([low + share * (high - low)], dtype=np.float32)
        for share, (name, (low, high)) in zip(shares, REACH.items(), strict=True)
    }
    return {"move": move, **reaches}


def door_key(only_picture: bool = False) -> gymnasium.Env:
    """Show a picture of 7 × 7 codes, and the direction; the text is always the same, and left out."""
    # The module registers it; it is of the extra `bench`.
    env = gymnasium.make("minigrid:MiniGrid-DoorKey-5x5-v0")
    if not only_picture:
        return FilterObservation(env, ["image", "direction"])
    assert isinstance(env.observation_space, Dict)
    return TransformObservation(env, itemgetter("image"), env.observation_space["image"])


def flat_numbers(env: gymnasium.Env) -> gymnasium.Env:
    """Show a picture as numbers: of whole ones Stable-Baselines3's buffer would cut the scaled values."""
    # VecNormalize scales what it gets, and the buffer has the type of the space.
    return DtypeObservation(FlattenObservation(env), np.float32)


@dataclass(frozen=True)
class Task:
    """A task; ``rivals`` are our algorithm and the peers that it is compared with.

    ``changes`` are of the settings that all share; ``wrappers`` make the environment fit for an algorithm, by its name;
    ``seeds`` are as many as trainings of each are compared.
    """

    make: Callable[[], gymnasium.Env]
    solved: float  # mean return of 20 episodes in training
    steps: int
    rivals: tuple[str, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Mapping[str, Callable[[gymnasium.Env], gymnasium.Env]] = field(default_factory=dict)
    seeds: int = 5

    @property
    def margin(self) -> float:
        """Tell how far behind counts as not behind: 5 % of the threshold."""
        return 0.05 * abs(self.solved)

    @property
    def shared(self) -> dict[str, Any]:
        """The settings that all algorithms have in this task."""
        return SHARED | dict(self.changes)

    @property
    def rollout(self) -> int:
        """Count the steps between two updates, of all environments together."""
        return self.shared["envs"] * self.shared["rollout_steps"]

    def env(self, algorithm: str) -> gymnasium.Env:
        """Make the environment as an algorithm can take it."""
        env = self.make()
        return self.wrappers[algorithm](env) if algorithm in self.wrappers else env


def registered(name: str, **options: Any) -> Callable[[], gymnasium.Env]:
    return partial(gymnasium.make, name, **options)


FEEDFORWARD = ("simic", "sb3 PPO")
RECURRENT = ("simic LSTM", "sb3-contrib RecurrentPPO")
MASKED = ("simic", "sb3-contrib MaskablePPO")
# As tuned for Stable-Baselines3 in rl-baselines3-zoo.
LANDER = {
    "minibatches": 16,
    "epochs": 4,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "entropy_coef": 0.01,
}
# CartPole, Acrobot, LunarLander and Hopper are solved where Gymnasium's registry says so; the other thresholds are
# ours.
TASKS = {
    "CartPole-v1": Task(
        registered("CartPole-v1"),
        475.0,
        60_000,
        FEEDFORWARD,
    ),
    "Acrobot-v1": Task(
        registered("Acrobot-v1"),
        -100.0,
        60_000,
        FEEDFORWARD,
        seeds=20,
    ),
    "CartPole without velocities": Task(
        without_velocities,
        475.0,
        50_000,
        RECURRENT,
    ),
    "Maze": Task(Maze, 0.8, 30_000, MASKED),
    "PickLegal": Task(PickLegal, 45.0, 100_000, MASKED),
    # The consequences of a push are over in a second.
    "Pendulum-v1": Task(
        registered("Pendulum-v1"),
        -200.0,
        60_000,
        FEEDFORWARD,
        {"gamma": 0.9},
    ),
    "Hopper-v5": Task(registered("Hopper-v5"), 3800.0, 300_000, FEEDFORWARD),
    "LunarLander-v3": Task(
        registered("LunarLander-v3"),
        200.0,
        125_000,
        FEEDFORWARD,
        LANDER,
    ),
    "LunarLander-v3, continuous": Task(
        registered("LunarLander-v3", continuous=True),
        200.0,
        125_000,
        FEEDFORWARD,
        LANDER,
    ),
    # A network for its pictures is in MiniGrid's documentation; rl-baselines3-zoo takes them as numbers.
    "DoorKey-5x5, picture": Task(
        partial(door_key, only_picture=True),
        0.9,
        100_000,
        ("simic", "sb3 PPO, picture", "sb3 PPO, numbers"),
        wrappers={"sb3 PPO, numbers": flat_numbers},
    ),
    "DoorKey-5x5, Dict": Task(door_key, 0.9, 50_000, FEEDFORWARD),
    # Both ways to have hybrid actions without hybrid actions.
    "Platform": Task(
        Platform,
        0.9,
        80_000,
        ("simic", "sb3 PPO, numbers", "sb3 PPO, levels"),
        wrappers={"sb3 PPO, numbers": PlatformOfNumbers, "sb3 PPO, levels": PlatformOfLevels},
    ),
    "T-maze of length 50": Task(
        partial(Corridor, 50),
        0.9,
        40_000,
        ("simic transformer", "sb3-contrib RecurrentPPO"),
    ),
    # No peer has memory and masks.
    "T-maze of length 50, masks": Task(
        partial(MaskedCorridor, 50),
        0.9,
        40_000,
        ("simic transformer", "sb3-contrib MaskablePPO"),
    ),
}
