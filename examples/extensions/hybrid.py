"""The agent on choices that come with a number of their own: Platform, after Masson, Ranchod and Konidaris 2016
(arXiv 1509.01644).

    python examples/extensions/hybrid.py [--steps 60000]

A runner crosses three grounds with two gaps; on each of the first two a guard walks to and fro. It may run, hop or
leap, and says how far: three continuous heads, each of which matters after its own op alone. Falling and being caught
ends the episode. The return is the share of the way that was made; random actions make 0.14.
"""

import argparse

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from simic.agent import Agent
from simic.agent.agent import IterationReport, settings, sizes
from simic.agent.spec import ActionSpec, Head

GROUNDS = ((0.0, 2.0), (3.0, 5.0), (6.5, 8.0))
END = GROUNDS[-1][1]
# How far each move goes at least and at most.
REACH = {"run": (0.0, 0.6), "hop": (0.3, 1.2), "leap": (1.0, 2.2)}
MOVES = tuple(REACH)
GUARD_SPEED = 0.3  # in a step
TOUCH = 0.2
LENGTH = 40


class Platform(gymnasium.Env):
    """Observes the place, what is ahead of it to the next edge and behind the gap, and the guard of its ground."""

    observation_space = Box(-END, END, (5,))
    action_space = Dict(
        {"move": Discrete(3)} | {name: Box(low, high, (1,)) for name, (low, high) in REACH.items()}
    )
    # Heads in the order of the space, choices before numbers; a row per move says which heads it uses. Spaces sort
    # their names.
    action_spec = ActionSpec(
        (Head("move", 3), *(Head(name, 1, continuous=True) for name in sorted(REACH))),
        relevance=tuple((True, *(name == move for name in sorted(REACH))) for move in MOVES),
    )

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        self.place = 0.0
        self.guards = [self.np_random.uniform(low + 0.5, high) for low, high in GROUNDS[:2]]
        self.ways = [float(way) for way in self.np_random.choice([-1, 1], size=2)]
        return self._look(), {}

    def _ground(self) -> int | None:
        """Tell which ground carries the runner; None over a gap."""
        return next((k for k, (low, high) in enumerate(GROUNDS) if low <= self.place <= high), None)

    def _look(self) -> np.ndarray:
        ground = self._ground()
        if ground is None or ground == len(GROUNDS) - 1:
            return np.array([self.place, END - self.place, 0, END, 0], dtype=np.float32)
        edge = GROUNDS[ground][1] - self.place
        gap = GROUNDS[ground + 1][0] - GROUNDS[ground][1]
        ahead = self.guards[ground] - self.place
        return np.array([self.place, edge, gap, ahead, self.ways[ground]], dtype=np.float32)

    def step(self, action: dict) -> tuple[np.ndarray, float, bool, bool, dict]:
        move = MOVES[action["move"]]
        before = self.place
        self.place = min(END, before + float(action[move][0]))
        ground = self._ground()
        # Whoever runs meets a guard on the way, whoever jumps where it lands.
        caught = ground is None
        for guard in self.guards:
            first = before if move == "run" else self.place
            caught |= first - TOUCH < guard < self.place + TOUCH
        self._walk()
        self.time += 1
        reward = 0.0 if caught else (self.place - before) / END
        over = caught or self.place == END
        return self._look(), reward, over, self.time == LENGTH and not over, {}

    def _walk(self) -> None:
        for k, (low, high) in enumerate(GROUNDS[:2]):
            self.guards[k] += GUARD_SPEED * self.ways[k]
            if not low + 0.5 <= self.guards[k] <= high:
                self.ways[k] = -self.ways[k]
                self.guards[k] = float(np.clip(self.guards[k], low + 0.5, high))


gymnasium.register("Platform-v0", entry_point=Platform)


def report(progress: IterationReport) -> None:
    """Every tenth update a line."""
    if progress.iteration % 10 == 0:
        print(f"{progress.env_steps:>7} steps  return {np.mean(progress.returns):5.2f} of 1")


def main(steps: int) -> float:
    """Train, and return the mean greedy return of new episodes."""
    policy = sizes(core="none", encoder_units=64, head_units=64)
    agent = Agent(
        Platform, envs=16, rollout_steps=64, policy=policy, ppo=settings(learning_rate=2e-3)
    )
    print(agent.env)
    agent.train(steps, report)
    returns = agent.evaluate(episodes=64)
    print(f"greedy return {np.mean(returns):.2f} of 1")
    return float(np.mean(returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60_000)
    main(parser.parse_args().steps)
