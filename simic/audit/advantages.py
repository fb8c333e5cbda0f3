"""Recompute scaled rewards, advantages and their moments from recorded steps, in float64 and by their definitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

REWARD_CLIP = 10.0  # of scaled rewards
REWARD_SCALE_FLOOR = 1e-2
FLAT = 1e-8  # variance of returns below which there is nothing to explain


@dataclass(frozen=True)
class RunningMoments:
    """Hold the count, the mean and the sum of squared deviations of all discounted returns so far."""

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def with_values(self, values: Array) -> Self:
        """Add values ``[N]``; those that are not finite are left out."""
        values = values[np.isfinite(values)]
        if not len(values):
            return self
        count = self.count + len(values)
        distance = values.mean() - self.mean
        within = np.square(values - values.mean()).sum()
        between = distance**2 * self.count * len(values) / count
        mean = self.mean + distance * len(values) / count
        return type(self)(count, float(mean), float(self.squares + within + between))

    @property
    def scale(self) -> float:
        """Compute the divisor of rewards: the floored standard deviation."""
        variance = self.squares / self.count if self.count else 1.0
        return max(float(np.sqrt(variance)), REWARD_SCALE_FLOOR)


def discounted_returns(rewards: Array, gamma: float, starts: Array | None, before: Array | None) -> Array:
    """Sum discounted rewards forward in time, as the reward scale does.

    Args:
        rewards: ``[T, E]``
        gamma: discount of a step
        starts: where an episode begins ``[T, E]``; None where all begin with the first step
        before: sums at the end of the rollout before ``[E]``; None for zeros

    Returns:
        The sums after each step ``[T, E]``.
    """
    total = np.zeros(rewards.shape[1]) if before is None else before
    sums = np.empty(rewards.shape)
    for step, reward in enumerate(rewards):
        if starts is not None:
            total = np.where(starts[step], 0.0, total)
        total = gamma * total + reward
        sums[step] = total
    return sums


def advantages(
    rewards: Array, values: Array, next_values: Array, terminated: Array, truncated: Array, valid: Array,
    gamma: float, gae_lambda: float,
) -> tuple[Array, Array]:  # fmt: skip
    """Compute generalised advantage estimates (Schulman et al. 2016, arXiv 1506.02438).

    Args:
        rewards: scaled ``[T, E]``
        values: of the state before each step ``[T, E]``
        next_values: of the state after each step ``[T, E]``
        terminated: whether the episode ended in a terminal state ``[T, E]``
        truncated: whether it was cut short ``[T, E]``
        valid: whether the step is a sample ``[T, E]``
        gamma: discount of a step
        gae_lambda: decay of later differences

    Returns:
        Advantages and returns ``[T, E]``, 0 where a step is no sample.
    """
    result = np.zeros(values.shape)
    later = np.zeros(values.shape[1])
    for step in reversed(range(len(values))):
        delta = rewards[step] + np.where(terminated[step], 0.0, gamma * next_values[step]) - values[step]
        continues = ~(terminated[step] | truncated[step])
        later = np.where(valid[step], delta + np.where(continues, gamma * gae_lambda * later, 0.0), 0.0)
        result[step] = later
    return result, np.where(valid, result + values, 0.0)


def moments(advantage: Array, returns: Array, values: Array) -> Mapping[str, float]:
    """Compute an update's metrics of its samples by name; explained variance is NaN where returns do not vary."""
    metrics = {"value_mean": float(values.mean())}
    for name, samples in (("advantage", advantage), ("return", returns)):
        metrics[f"{name}_mean"] = float(samples.mean())
        metrics[f"{name}_std"] = float(samples.std())
        metrics[f"{name}_max_abs"] = float(np.abs(samples).max())
    spread = float(returns.var())
    unexplained = float((returns - values).var())
    metrics["explained_variance"] = 1.0 - unexplained / spread if spread > FLAT else float("nan")
    return metrics
