"""Heads of real numbers: independent normal distributions, whose σ is learned and the same for every observation.

Numbers are in units of half their range. Clipped ones are not bounded here: what the environment gets is clipped, and
the probability is that of the number before (as in Stable-Baselines3 and CleanRL). Squashed ones are a = tanh(u) of a
normal u (Haarnoja et al. 2018, arXiv 1801.01290, appendix C), with ln π(a) = ln N(u) − ln(1 − tanh²u).
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from simic.agent.distributions import relevant_only

LEAST_SIGMA = 0.02  # so that rounding of the mean stays far below it
# Half the way to a bound (Andrychowicz et al. 2021, arXiv 2006.05990, C9).
FIRST_LOG_SIGMA = math.log(0.5)
# Uniform noise has 24 bits; in the middle of its steps no draw is infinite.
HALF_STEP = 2.0**-25
# The float32 before 1, as actions are recorded: of 1 itself u would be infinite.
LARGEST_SQUASHED = 1.0 - 2.0**-24


@dataclass(frozen=True)
class Numbers:
    """The distribution of one continuous head, and its numbers ``values [..., n]``, 0 where it is irrelevant."""

    mean: Tensor  # [..., n]
    sigma: Tensor  # [n]
    relevant: Tensor | None
    values: Tensor
    squashed: Tensor | None = None  # which numbers are, bool [n]
    mask: None = None

    @classmethod
    def decide(
        cls,
        mean: Tensor,
        log_sigma: Tensor,
        relevant: Tensor | None,
        noise: Tensor | None,
        recorded: Tensor | None,
        squashed: Tensor | None = None,
    ) -> Self:
        """Draw numbers.

        Args:
            mean: ``[..., n]``.
            log_sigma: ``[n]``; σ is above ``LEAST_SIGMA``.
            relevant: Where the head matters, bool ``[...]``; None: everywhere.
            noise: Uniform in [0, 1), ``[..., n]``; None: the mean is taken.
            recorded: Numbers of an earlier decision ``[..., n]``, taken as they are.
            squashed: Which numbers a tanh brings between ±1, bool ``[n]``; None: none of them.
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
        if squashed is not None and recorded is None:
            # Rounded as they are recorded, so that they are scored by the same digits later.
            bounded = values.tanh().float().clamp(-LARGEST_SQUASHED, LARGEST_SQUASHED)
            values = torch.where(squashed, bounded.to(values.dtype), values)
        values = relevant_only(values, None if relevant is None else relevant[..., None])
        return cls(mean, sigma, relevant, values, squashed)

    @property
    def columns(self) -> Tensor:
        """The action's part, ``[..., n]``."""
        return self.values

    @property
    def outputs(self) -> Tensor:
        """What the network said, ``[..., n]``."""
        return self.mean

    def log_prob(self) -> Tensor:
        """Compute ln π of the numbers ``[...]``, the sum of ln N(x; μ, σ²), or squashed of ln N(u) − ln(1 − tanh²u);
        exactly 0 where the head is irrelevant.
        """
        # Of the number before it is clipped: the probability of a clipped one has no density.
        values = self.values
        if self.squashed is not None:
            before = values.clamp(-LARGEST_SQUASHED, LARGEST_SQUASHED).atanh()
            values = torch.where(self.squashed, before, values)
        distance = (values - self.mean) / self.sigma
        density = -0.5 * (distance.square() + math.log(2.0 * math.pi)) - self.sigma.log()
        if self.squashed is not None:
            # ln(1 − tanh²u) = 2 (ln 2 − u − softplus(−2u)), in which no digits cancel where tanh u is near ±1.
            slope = 2.0 * (math.log(2.0) - values - functional.softplus(-2.0 * values))
            density = density - torch.where(self.squashed, slope, 0.0)
        return relevant_only(density.sum(dim=-1), self.relevant)

    def normalized_entropy(self) -> Tensor:
        """Compute the entropy of a number ``[...]`` in nats, the mean of ½ ln 2πeσ²: ln 2 is that of a uniform draw
        between the bounds. Exactly 0 where the head is irrelevant. Of squashed numbers it is that of u: theirs has no
        closed form.
        """
        # By number, so that a Box of many numbers is not paid more for being undecided than one choice.
        entropy = (0.5 * math.log(2.0 * math.pi * math.e) + self.sigma.log()).mean()
        return relevant_only(entropy.expand(self.mean.shape[:-1]), self.relevant)
