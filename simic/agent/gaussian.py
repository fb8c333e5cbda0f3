"""Heads of real numbers: independent normal distributions, whose σ is learned and the same for every observation.

Numbers are in units of half their range and are not bounded here: what the environment gets is clipped, and the
probability is that of the number before (as in Stable-Baselines3 and CleanRL).
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from simic.agent.distributions import relevant_only

LEAST_SIGMA = 0.02  # so that rounding of the mean stays far below it
FIRST_LOG_SIGMA = math.log(
    0.5
)  # half the way to a bound (Andrychowicz et al. 2021, arXiv 2006.05990, C9)
# Uniform noise has 24 bits; in the middle of its steps no draw is infinite.
HALF_STEP = 2.0**-25


@dataclass(frozen=True)
class Numbers:
    """The distribution of one continuous head, and its numbers ``values [..., n]``, 0 where it is irrelevant."""

    mean: Tensor  # [..., n]
    sigma: Tensor  # [n]
    relevant: Tensor | None
    values: Tensor
    mask: None = None

    @classmethod
    def decide(
        cls,
        mean: Tensor,
        log_sigma: Tensor,
        relevant: Tensor | None,
        noise: Tensor | None,
        recorded: Tensor | None,
    ) -> Self:
        """Draw numbers.

        Args:
            mean: ``[..., n]``.
            log_sigma: ``[n]``; σ is above ``LEAST_SIGMA``.
            relevant: Where the head matters, bool ``[...]``; None: everywhere.
            noise: Uniform in [0, 1), ``[..., n]``; None: the mean is taken.
            recorded: Numbers of an earlier decision ``[..., n]``, taken as they are.
        """
        # At least float32, as logits: with fewer digits the ratio of an unchanged policy would not be 1.
        mean = mean if mean.dtype == torch.float64 else mean.float()
        sigma = log_sigma.to(mean.dtype).exp() + LEAST_SIGMA
        if recorded is not None:
            values = recorded
        elif noise is not None:
            # The inverse of the cumulative distribution, as for choices.
            uniform = 2.0 * (noise.double() + HALF_STEP) - 1.0
            values = mean + sigma * (math.sqrt(2.0) * uniform.erfinv()).to(mean.dtype)
        else:
            values = mean
        values = relevant_only(values, None if relevant is None else relevant[..., None])
        return cls(mean, sigma, relevant, values)

    @property
    def columns(self) -> Tensor:
        """The action's part, ``[..., n]``."""
        return self.values

    @property
    def outputs(self) -> Tensor:
        """What the network said, ``[..., n]``."""
        return self.mean

    def log_prob(self) -> Tensor:
        """Compute ln π of the numbers ``[...]``, the sum of ln N(x; μ, σ²); exactly 0 where the head is irrelevant."""
        # Of the number before it is clipped: the probability of a clipped one has no density.
        distance = (self.values - self.mean) / self.sigma
        density = -0.5 * (distance.square() + math.log(2.0 * math.pi)) - self.sigma.log()
        return relevant_only(density.sum(dim=-1), self.relevant)

    def normalized_entropy(self) -> Tensor:
        """Compute the entropy of a number ``[...]`` in nats, the mean of ½ ln 2πeσ²: ln 2 is that of a uniform draw
        between the bounds. Exactly 0 where the head is irrelevant.
        """
        # By number, so that a Box of many numbers is not paid more for being undecided than one choice.
        entropy = (0.5 * math.log(2.0 * math.pi * math.e) + self.sigma.log()).mean()
        return relevant_only(entropy.expand(self.mean.shape[:-1]), self.relevant)
