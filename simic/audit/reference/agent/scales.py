"""Running scales of observations and rewards: one row after another (Welford 1962), frozen while an episode runs."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

CLIP = 10.0
VARIANCE_FLOOR = 1e-4  # added to the variance of a feature
REWARD_SCALE_FLOOR = 1e-2


@dataclass(frozen=True)
class Tally64:
    """How many rows there were, their mean and the sum of their squared deviations ``[D]``."""

    count: float
    mean: Tensor
    squares: Tensor

    def with_rows(self, rows: Iterable[Tensor]) -> "Tally64":
        """Those rows ``[D]``, too, one by one; rows that hold a NaN or an infinity are left out."""
        count, mean, squares = self.count, self.mean, self.squares
        for row in rows:
            if torch.isfinite(row).all():
                count += 1
                before = row - mean
                mean = mean + before / count
                squares = squares + before * (row - mean)
        return Tally64(count, mean, squares)

    def variance(self) -> Tensor:
        """1 before the first row."""
        return self.squares / self.count if self.count else torch.ones_like(self.squares)


def seen(features: Tensor, tally: Tally64, flags: tuple[bool, ...]) -> Tensor:
    """Features ``[…, F]`` as the policy sees them: each in standard deviations from its mean, within ±10; flags as they
    are. Before the first row only clipped.
    """
    scaled = features
    if tally.count:
        scaled = (features - tally.mean) / torch.sqrt(tally.variance() + VARIANCE_FLOOR)
    return torch.where(torch.tensor(flags), features, torch.clip(scaled, -CLIP, CLIP))


def discounted(rewards: list[float], starts: list[bool], before: float, gamma: float) -> list[float]:
    """R ← γ R + r of one environment, from 0 where an episode starts."""
    found: list[float] = []
    running = before
    for reward, start in zip(rewards, starts, strict=True):
        running = gamma * (0.0 if start else running) + reward
        found.append(running)
    return found


def reward_scale(tally: Tally64) -> float:
    """Standard deviation of the discounted returns, at least 0.01; never their mean."""
    return max(math.sqrt(float(tally.variance()[0])), REWARD_SCALE_FLOOR)


def scaled_rewards(rewards: Tensor, scale: float, clipped: bool) -> Tensor:
    """In units of the scale; within ±10 where nothing telescopes."""
    return torch.clip(rewards / scale, -CLIP, CLIP) if clipped else rewards / scale
