"""The agent on observations of several kinds: a picture, a number and a rule.

    python examples/extensions/picture.py [--steps 24000]

One quarter of the picture is lit. The rule says which of four buttons pays: that of the lit quarter, the next one, and
so on. The number is noise. Pressing at random pays 5 of 20.
"""

import argparse

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from simic.agent import Agent
from simic.agent.agent import IterationReport, settings, sizes

BUTTONS = 4
SIDE = 12
LENGTH = 20


class Picture(gymnasium.Env):
    """Shows a new picture and a new rule in each of ``LENGTH`` steps."""

    observation_space = Dict(
        {
            "picture": Box(0, 255, (SIDE, SIDE, 3), np.uint8),
            "rule": Discrete(BUTTONS),
            "noise": Box(-1.0, 1.0, (1,)),
        }
    )
    action_space = Discrete(BUTTONS)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def _look(self) -> dict[str, object]:
        self.lit, self.rule = (int(number) for number in self.np_random.integers(BUTTONS, size=2))
        picture = np.zeros((2, SIDE // 2, 2, SIDE // 2, 3), np.uint8)
        picture[self.lit // 2, :, self.lit % 2] = 255
        noise = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return {"picture": picture.reshape(SIDE, SIDE, 3), "rule": self.rule, "noise": noise}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        reward = float(action == (self.lit + self.rule) % BUTTONS)
        self.time += 1
        return self._look(), reward, False, self.time == LENGTH, {}


gymnasium.register("Picture-v0", entry_point=Picture)


def report(progress: IterationReport) -> None:
    """Every tenth update a line."""
    if progress.iteration % 10 == 0:
        print(f"{progress.env_steps:>7} steps  return {np.mean(progress.returns):5.2f} of {LENGTH}")


def main(steps: int) -> float:
    """Train, and return the mean greedy return of new episodes."""
    # Nothing has to be remembered, and one trunk serves the value too.
    policy = sizes(encoder_units=64, core="none", critic="detached")
    agent = Agent(
        Picture, envs=8, rollout_steps=64, policy=policy, ppo=settings(learning_rate=3e-3)
    )
    print(agent.env)
    agent.train(steps, report)
    returns = agent.evaluate(episodes=64)
    print(f"greedy return {np.mean(returns):.2f} of {LENGTH}")
    return float(np.mean(returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=24_000)
    main(parser.parse_args().steps)
