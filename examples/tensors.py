"""The agent on environments that are one program on tensors: 256 boards at once, on a GPU too.

    python examples/tensors.py [--steps 80000] [--device cuda]

A piece on a board of eight by eight must reach a goal; about every fifth square is blocked. It may stay, or move to a
square beside it that is free, and sees which are and the way to the goal. Reaching the goal pays up to 1, the
sooner the more.
"""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from simic.agent import Agent
from simic.agent.agent import IterationReport, settings, sizes

SIDE = 8
BLOCKED = 0.2
LENGTH = 32
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))


class Boards(VectorEnv):
    """Rows that end start anew in the same step; what they last observed is in ``final_obs``."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - gymnasium's own form
    single_observation_space = Box(-SIDE, SIDE, (2 + len(MOVES),))
    single_action_space = Discrete(len(MOVES))

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        self.num_envs = num_envs
        self.moves = torch.tensor(MOVES, device=device)
        self.rows = torch.arange(num_envs, device=device)
        self.random = torch.Generator(device)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict]:
        self.random.manual_seed(seed or 0)
        self.time, self.place, self.goal, self.free = self._new()
        return self._look(), {}

    def _new(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw a board, a piece and a goal for every row; around the board nothing is free."""
        device = self.rows.device
        draws = torch.rand(self.num_envs, SIDE, SIDE, generator=self.random, device=device)
        ends = torch.randint(
            1, SIDE + 1, (2, self.num_envs, 2), generator=self.random, device=device
        )
        free = torch.nn.functional.pad(draws > BLOCKED, (1, 1, 1, 1))
        for place in ends:
            free[self.rows, *place.unbind(1)] = True
        return torch.zeros_like(self.rows), *ends, free

    def action_masks(self) -> Tensor:
        """Tell which moves end on a free square, bool ``[E, 5]``."""
        around = self.place[:, None] + self.moves
        return self.free[self.rows[:, None], *around.unbind(2)]

    def _look(self) -> Tensor:
        return torch.cat((self.goal - self.place, self.action_masks()), dim=1).float()

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict]:
        self.place = self.place + self.moves[actions]
        self.time = self.time + 1
        reached = (self.place == self.goal).all(dim=1)
        late = (self.time == LENGTH) & ~reached
        reward = reached * (1.0 - self.time / (2 * LENGTH))
        last = self._look()
        # New boards for all, of which those rows are taken that have ended.
        ended = reached | late
        state = zip(self._new(), (self.time, self.place, self.goal, self.free), strict=True)
        self.time, self.place, self.goal, self.free = (
            torch.where(ended.view(-1, *[1] * (old.ndim - 1)), new, old) for new, old in state
        )
        return self._look(), reward, reached, late, {"final_obs": last}

    def state_dict(self) -> dict[str, Tensor]:
        """Copy all that decides what comes: a loaded agent goes on in mid-episode."""
        return {
            "time": self.time,
            "place": self.place,
            "goal": self.goal,
            "free": self.free,
            "random": self.random.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Tensor:
        """Go on from there; return what is observed."""
        self.random.set_state(state["random"].cpu())
        self.time, self.place, self.goal, self.free = (
            state[name].to(self.rows.device) for name in ("time", "place", "goal", "free")
        )
        return self._look()


def report(progress: IterationReport) -> None:
    """Every fifth update a line."""
    if progress.iteration % 5 == 0:
        print(f"{progress.env_steps:>7} steps  return {np.mean(progress.returns):5.2f} of 1")


def main(steps: int, device: str) -> float:
    """Train, and return the mean greedy return of new episodes."""
    agent = Agent(
        lambda num_envs: Boards(num_envs, device),
        vector="tensors",
        envs=256,
        rollout_steps=16,
        policy=sizes(core="gru", encoder_units=64, core_units=64, critic="detached"),
        ppo=settings(learning_rate=3e-3, gamma=0.97),
    )
    print(agent.env)
    agent.train(steps, report)
    returns = agent.evaluate(episodes=512)
    print(f"greedy return {np.mean(returns):.2f} of 1")
    return float(np.mean(returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=80_000)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    main(arguments.steps, arguments.device)
