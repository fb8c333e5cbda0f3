"""Scale of rewards, advantages and returns in float64."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simic.audit.recompute.arrays import Array, Steps

CLIP, FLOOR = 10.0, 1e-2  # of scaled rewards; of σ, in units of reward


@dataclass
class Scale:
    """Accumulate σ of the running discounted return over all rollouts so far."""

    gamma: float
    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """Return the mean of the discounted returns."""
        return self.total / max(self.count, 1)

    @property
    def m2(self) -> float:
        """Return the sum of their squared deviations."""
        return self.squares - self.total * self.mean

    @property
    def sigma(self) -> float:
        """Return the floored population deviation; 1 before the first reward."""
        return max(float(np.sqrt(self.m2 / self.count)), FLOOR) if self.count else 1.0

    def take_in(self, rewards: Array, valid: Array) -> None:
        """Add one rollout that starts with fresh episodes, ``[T, E]``."""
        running = np.zeros(rewards.shape[1])
        for paid, counts in zip(rewards, valid, strict=True):
            running = self.gamma * running + paid
            self.count += int(counts.sum())
            self.total += float(running[counts].sum())
            self.squares += float((running[counts] ** 2).sum())


class Estimates(NamedTuple):
    """Hold advantages and returns ``[T, E]``, 0 where not valid."""

    advantages: Array
    returns: Array


def estimates(steps: Steps, rewards: Array, values: Array, gamma: float, trace: float) -> Estimates:
    """Return generalised advantages and returns of episodes that end in a terminal state (the last value of a truncated
    one is not recorded).
    """
    valid, died = steps["valid"], steps["panicked"]
    advantages = np.zeros(values.shape)
    following, ahead = np.zeros(values.shape[1]), np.zeros(values.shape[1])  # A and V of the next step
    for t in reversed(range(len(values))):
        over = died[t] | (t == len(values) - 1)
        following, ahead = np.where(over, 0.0, following), np.where(over, 0.0, ahead)
        following = np.where(valid[t], rewards[t] + gamma * ahead - values[t] + gamma * trace * following, 0.0)
        ahead = np.where(valid[t], values[t], 0.0)
        advantages[t] = following
    return Estimates(advantages, np.where(valid, advantages + values, 0.0))
