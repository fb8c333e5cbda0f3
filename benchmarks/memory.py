"""Compare the kinds of memory on T-mazes: a sign at the start says which turn at the end of a corridor pays.

    python -m benchmarks.memory [--cores lstm gru transformer] [--lengths 10 50] [--seeds 3] [--steps 40000]

A line for every run: the return of greedy episodes, the steps until 40 episodes in training had a mean return of 0.9,
and CPU microseconds for each step, acting and learning together. Half of all turns are right without memory.
"""

import time

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from benchmarks import page
from simic.agent.agent import Agent, IterationReport, settings, sizes

UNITS = 32
WINDOW = 64
WINDOW_EPISODES = 40
SOLVED = 0.9


class Corridor(gymnasium.Env):
    """A T-maze (Bakker 2001): seen are the sign, at the start alone, and whether this is the junction."""

    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Discrete(3)  # on, left, right

    def __init__(self, length: int) -> None:
        self.length = length

    def _look(self) -> np.ndarray:
        sign = 2.0 * self.turn - 1.0 if self.place == 0 else 0.0
        return np.array([sign, self.place == self.length], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = 0
        # Drawn by Gymnasium's own generator: the same turns for every core.
        self.turn = int(self.np_random.integers(2))
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.place == self.length:
            return self._look(), float(action - 1 == self.turn), True, False, {}
        self.place += 1
        return self._look(), 0.0, False, False, {}


class MaskedCorridor(Corridor):
    """Says what is legal, too: on in the corridor, left and right at its end."""

    def action_masks(self) -> np.ndarray:
        # In the corridor nothing is decided: what is learned is memory alone.
        is_junction = self.place == self.length
        return np.array([not is_junction, is_junction, is_junction])


def measure(core: str, length: int, rng_seed: int, steps: int) -> str:
    """Train once, and describe it in a line."""
    # Small, and with a memory of its own for the value, as Agent has by default.
    policy = sizes(
        core=core,
        encoder_units=UNITS,
        core_units=UNITS,
        head_units=UNITS,
        window=WINDOW,
    )
    agent = Agent(lambda: MaskedCorridor(length), rng_seed=rng_seed, policy=policy, ppo=settings())
    returns: list[float] = []
    solved: list[int] = []

    def note(report: IterationReport) -> None:
        returns.extend(report.returns)
        # The first such update counts.
        if np.mean(returns[-WINDOW_EPISODES:]) >= SOLVED:
            solved.append(report.env_steps)

    # Of this process and not of the clock: the machine is shared.
    started = time.process_time()
    agent.train(steps, note)
    cost = (time.process_time() - started) / agent.env_steps
    final = np.mean(agent.evaluate(WINDOW_EPISODES))
    first = f"{solved[0]:,}" if solved else "never"
    return f"{core:11} length {length} seed {rng_seed}: return {final:.2f}, solved {first}, {1e6 * cost:.0f} µs a step"


def main() -> None:
    parser = page.parser(__doc__)
    parser.add_argument("--cores", nargs="+", default=["lstm", "gru", "transformer"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[10, 50])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for length in options.lengths:
        for rng_seed in range(1, options.seeds + 1):
            for core in options.cores:
                print(measure(core, length, rng_seed, options.steps), flush=True)


if __name__ == "__main__":
    main()
