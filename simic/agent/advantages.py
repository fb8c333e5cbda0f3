"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438): one reverse scan, all environments."""

from dataclasses import replace

import torch
from torch import Tensor

from simic.agent.normalization import Reduce
from simic.agent.rollout import Rollout

ADVANTAGE_SIGMA_FLOOR = 0.1  # for scaled rewards: below it differences are noise and are not blown up to 1


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, all ``[T, E]``; both 0 where not valid.

    A terminal state is worth 0, also when it is truncated as well; a truncated one is worth its bootstrap value. Every
    end cuts the trace, and so does a row that stops without one.
    """
    follows = torch.cat((valid[1:], torch.zeros_like(valid[:1])))
    goes_on = follows & ~(terminated | truncated)
    delta = rewards + gamma * torch.where(terminated, 0.0, next_values) - values
    advantages = torch.zeros_like(values)
    trace = torch.zeros_like(values[0])
    for t in reversed(range(len(values))):
        # A_t = δ_t + γ λ A_{t+1}
        trace = torch.where(valid[t], delta[t] + gamma * gae_lambda * torch.where(goes_on[t], trace, 0.0), 0.0)
        advantages[t] = trace
    return advantages, torch.where(valid, advantages + values, 0.0)


def with_advantages(rollout: Rollout, rewards: Tensor, gamma: float, gae_lambda: float) -> Rollout:
    """The rollout with its advantages and returns, computed from the scaled ``rewards [T, E]``."""
    ends = rollout.terminated, rollout.truncated, rollout.valid
    advantages, returns = gae(rewards, rollout.values, rollout.next_values, *ends, gamma, gae_lambda)
    return replace(rollout, advantages=advantages, returns=returns)


def normalized(advantages: Tensor, valid: Tensor, reduce: Reduce | None = None) -> Tensor:
    """(A − μ) / max(σ, floor) over the valid rows of all processes; 0 where not valid."""
    every = reduce or (lambda x, _: x)
    count = every(valid.sum().to(advantages.dtype), "sum").clamp(min=1)
    mean = every(torch.where(valid, advantages, 0.0).sum(), "sum") / count
    centred = torch.where(valid, advantages - mean, 0.0)
    sigma = (every(centred.square().sum(), "sum") / count).sqrt()
    return centred / sigma.clamp(min=ADVANTAGE_SIGMA_FLOOR)
