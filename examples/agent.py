"""The agent on a problem of your own that needs memory, masks, and heads that matter after some ops only.

    python examples/agent.py [--steps 40000]

A lock shows a digit once, then lights a lamp after a few steps; only while the lamp is on may a button be pressed, and
the one with the digit opens it. Ops are WAIT and PRESS; which button matters after PRESS alone. Pressing the right one
pays 1, any other costs 1, and waiting the lamp out pays nothing. Without memory the best is to wait: 0.
"""

import argparse

import gymnasium
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete

from simic.agent import Agent
from simic.agent.agent import IterationReport, settings, sizes
from simic.agent.spec import ActionSpec, Head

WAIT = 0
PRESS = 1
BUTTONS = 4
LENGTH = 8


class Lock(gymnasium.Env):
    """Observes the digit (first step only), the lamp and the time."""

    observation_space = Box(0.0, 1.0, (BUTTONS + 2,))
    action_space = MultiDiscrete([2, BUTTONS])
    # Heads in the order they are sampled; a row per op says which heads it uses.
    action_spec = ActionSpec(
        (Head("op", 2), Head("button", BUTTONS)), relevance=((True, False), (True, True))
    )

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        self.digit = int(self.np_random.integers(BUTTONS))
        self.lit = int(self.np_random.integers(2, LENGTH - 1))
        return self._look(), {}

    def _look(self) -> np.ndarray:
        features = np.zeros(BUTTONS + 2, dtype=np.float32)
        features[self.digit] = self.time == 0
        features[-2:] = self.time >= self.lit, self.time / LENGTH
        return features

    def action_masks(self) -> dict[str, np.ndarray]:
        """By the name of the head; a head without a mask is free."""
        return {"op": np.array([True, self.time >= self.lit])}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        pressed = action[0] == PRESS
        reward = (1.0 if action[1] == self.digit else -1.0) if pressed else 0.0
        self.time += 1
        return self._look(), reward, bool(pressed) or self.time == LENGTH, False, {}


def report(progress: IterationReport) -> None:
    """Every fifth update a line."""
    if progress.iteration % 5 == 0:
        entropy = {
            name: round(value, 2) for name, value in progress.metrics.entropy_by_head.items()
        }
        print(
            f"{progress.env_steps:>7} steps  return {np.mean(progress.returns):5.2f}  entropy {entropy}"
        )


def main(steps: int) -> float:
    """Train, and return the mean greedy return of new episodes."""
    policy = sizes(encoder_units=32, core="lstm", core_units=32, head_units=32)
    ppo = settings(learning_rate=3e-3, gamma=0.99)
    agent = Agent(Lock, envs=16, rollout_steps=64, policy=policy, ppo=ppo)
    agent.train(steps, report)
    returns = agent.evaluate(episodes=64)
    print(f"greedy return {np.mean(returns):.2f} of 1")
    return float(np.mean(returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40_000)
    main(parser.parse_args().steps)
