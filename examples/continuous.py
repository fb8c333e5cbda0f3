"""The agent on real numbers: Pendulum-v1, which pays −16 to 0 in each of 200 steps for how upright and still it is.

    python examples/continuous.py [--steps 40000]

At random a return is about −1,200; from −200 on it is balanced.
"""

import argparse

import numpy as np

from simic.agent import Agent
from simic.agent.agent import IterationReport, settings, sizes


def report(progress: IterationReport) -> None:
    """Every tenth update a line."""
    if progress.iteration % 10 == 0 and progress.returns:
        print(f"{progress.env_steps:>7} steps  return {np.mean(progress.returns):6.0f}")


def main(steps: int) -> float:
    """Train, and return the mean greedy return of new episodes."""
    # What is seen is the whole state. The consequences of a push are over in a second, so the future counts little.
    policy = sizes(core="none", encoder_units=64)
    ppo = settings(gamma=0.9, epochs=10)
    agent = Agent("Pendulum-v1", envs=8, rollout_steps=128, policy=policy, ppo=ppo)
    agent.train(steps, report)
    returns = agent.evaluate(episodes=24)
    print(f"greedy return {np.mean(returns):.0f}")
    return float(np.mean(returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40_000)
    main(parser.parse_args().steps)
