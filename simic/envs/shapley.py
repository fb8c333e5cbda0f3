"""Shapley values of the acting seeds at live alpha: exact for few seeds, by antithetic permutations for many.

Efficiency holds in both: the values of a host's seeds sum to what all of them gain together.
"""

from collections.abc import Callable
from math import comb

import torch
from torch import Tensor

from simic import rng
from simic.growth.batch.population import Answers

EXACT_SEEDS = 6  # 2⁶ = 64 networks per host at most
PERMUTATION_PAIRS = 20  # an order and its reverse each

Evaluate = Callable[[Tensor], Answers]  # seeds forced out, bool [Cfg, E, K]


def shapley(acting: Tensor, evaluate: Evaluate, stream: Tensor) -> Tensor:
    """Return the Shapley values of the seeds ``acting [E, K]``, in points, float64; NaN for the other seeds, and where
    a network is not finite. ``stream [E]`` are the keys of each host's permutations, for many seeds alone.
    """
    most = int(acting.sum(dim=1).max()) if len(acting) else 0
    values = _exact(acting, evaluate, max(most, 1)) if most <= EXACT_SEEDS else _sampled(acting, evaluate, stream)
    return torch.where(acting, values, torch.nan)


def _exact(acting: Tensor, evaluate: Evaluate, seeds: int) -> Tensor:
    """Compute φ_i = Σ_S |S|! (n-|S|-1)! / n! · (f(S ∪ i) - f(S)) over all subsets of the n seeds of a host.

    Hosts with fewer than n acting seeds have players that do nothing: these change no other's value.
    """
    rank = (acting.cumsum(dim=1) - 1).clamp(min=0)
    members = torch.arange(2**seeds, device=acting.device)[:, None] >> torch.arange(seeds, device=acting.device) & 1
    worth = _worth(evaluate(acting & ~members.bool()[:, rank]))
    return (_weights(members) @ worth).T.gather(1, rank)


def _weights(members: Tensor) -> Tensor:
    """Return the weight of each subset's worth in each player's value, ``[n, 2ⁿ]`` float64."""
    n = members.shape[1]
    # 1 / (n · C(n-1, s)) = s! (n-s-1)! / n!, with s others beside the player.
    weight = torch.tensor([1.0 / (n * comb(n - 1, s)) for s in range(n)], dtype=torch.float64, device=members.device)
    others = (members.sum(dim=1, keepdim=True) - members).clamp(max=n - 1)
    return (weight[others] * (2 * members - 1)).T


def _sampled(acting: Tensor, evaluate: Evaluate, stream: Tensor) -> Tensor:
    """Return the mean marginal over random orders and their reverses."""
    envs, slots = acting.shape
    orders = rng.permutation(rng.bits(stream, (PERMUTATION_PAIRS,)), slots)  # [E, pairs, K]: the place of each slot
    rows = torch.arange(envs, device=acting.device)[:, None]
    sizes = torch.arange(slots + 1, device=acting.device)[:, None, None]
    values = torch.zeros(envs, slots, dtype=torch.float64, device=acting.device)
    for order in orders.unbind(dim=1):
        for place in (order, slots - 1 - order):
            worth = _worth(evaluate(acting & (place >= sizes)))
            values += worth.diff(dim=0)[place, rows]
    return values / (2 * PERMUTATION_PAIRS)


def _worth(answers: Answers) -> Tensor:
    """Return the accuracy of each network ``[Cfg, E]``, in points, float64; NaN where it is not finite."""
    accuracy = 100.0 * answers.correct.mean(dim=2, dtype=torch.float64)
    return torch.where(answers.loss.isfinite(), accuracy, torch.nan)
