"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438): one reverse scan, all environments."""

from dataclasses import replace

import torch
from torch import Tensor

from simic.agent.rollout import Rollout


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

    A terminal state is worth 0, also when it is truncated as well; a truncated one is worth its bootstrap value. The
    trace is cut at every end, and where a row's valid steps stop without one.
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
