"""How much better than expected it went (GAE, Schulman et al. 2016, arXiv 1506.02438)."""

import math

import torch
from torch import Tensor

SIGMA_FLOOR = 0.1  # of advantages, in units of scaled reward
FLAT = 1e-8  # variance of returns below which there is nothing to explain


def generalized(
    rewards: list[float],
    values: list[float],
    following: list[float],
    terminated: list[bool],
    truncated: list[bool],
    valid: list[bool],
    gamma: float,
    decay: float,
) -> tuple[list[float], list[float]]:
    """Advantages and returns of one environment: the sum of (γ λ)^n δ over the steps up to the end of its episode.

    ``following`` is the value of the state that each step led to; after a terminal one nothing follows, also if it was
    truncated in the same step.
    """
    advantages: list[float] = []
    for t in range(len(rewards)):
        total, weight = 0.0, 1.0
        for later in range(t, len(rewards)):
            if not valid[later]:
                break
            future = 0.0 if terminated[later] else gamma * following[later]
            total += weight * (rewards[later] + future - values[later])
            weight *= gamma * decay
            if terminated[later] or truncated[later]:
                break
        advantages.append(total)
    returns = [a + v if real else 0.0 for a, v, real in zip(advantages, values, valid, strict=True)]
    return advantages, returns


def standardized(advantages: Tensor, decided: Tensor) -> Tensor:
    """(A − mean) / max(σ, 0.1) over all steps that were decisions; 0 elsewhere."""
    if not decided.any():
        return torch.zeros_like(advantages)
    mean, sigma = mean_and_sigma(advantages[decided])
    return torch.where(decided, (advantages - mean) / max(sigma, SIGMA_FLOOR), 0.0)


def mean_and_sigma(values: Tensor) -> tuple[float, float]:
    """Of the population, in exact sums."""
    numbers = values.flatten().tolist()
    mean = math.fsum(numbers) / len(numbers)
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / len(numbers))


def summary(advantages: Tensor, returns: Tensor, values: Tensor, valid: Tensor) -> dict[str, float]:
    """What is reported of them, by the name of the metric; NaN where returns do not vary."""
    a, r, v = advantages[valid], returns[valid], values[valid]
    (a_mean, a_sigma), (r_mean, r_sigma), (v_mean, _) = mean_and_sigma(a), mean_and_sigma(r), mean_and_sigma(v)
    left = mean_and_sigma(r - v)[1] ** 2
    return {
        "advantage_mean": a_mean,
        "advantage_std": a_sigma,
        "advantage_max_abs": float(a.abs().max()),
        "return_mean": r_mean,
        "return_std": r_sigma,
        "return_max_abs": float(r.abs().max()),
        "value_mean": v_mean,
        "explained_variance": 1.0 - left / r_sigma**2 if r_sigma**2 > FLAT else math.nan,
    }
