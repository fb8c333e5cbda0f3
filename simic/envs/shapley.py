"""Shapley values of the acting seeds at live alpha: exact for few seeds, by antithetic permutations for many.

Efficiency holds in both: the values of a host's seeds sum to f(all) - f(∅).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

from simic import rng
from simic.envs.attribution import mean_and_error
from simic.growth.batch.population import Answers

EXACT_SEEDS = 6  # 2⁶ = 64 networks per host at most
PERMUTATION_PAIRS = 20  # an order and its reverse each
SAMPLES_AT_ONCE = 1024  # float64 copies of all subsets' answers stay small

Evaluate = Callable[[Tensor], Answers]  # seeds forced out, bool [Cfg, E, K]


@dataclass(frozen=True)
class Shapley:
    """Points ``[E, K]``, float64, NaN for seeds that do not act and in hosts with a network that is not finite."""

    value: Tensor
    sample_error: Tensor  # standard error over validation samples, paired
    permutation_error: Tensor  # standard error over permutations; 0 where all subsets were run
    gain: Tensor  # [E] f(all) - f(∅)


def shapley(acting: Tensor, evaluate: Evaluate, stream: Tensor) -> Shapley:
    """Return the Shapley values of the seeds ``acting [E, K]``; ``stream [E]`` are the keys of each host's
    permutations, for many seeds alone.
    """
    most = int(acting.sum(dim=1).max()) if len(acting) else 0
    if most <= EXACT_SEEDS:
        return _exact(acting, evaluate, max(most, 1))
    return _sampled(acting, evaluate, stream)


def _exact(acting: Tensor, evaluate: Evaluate, seeds: int) -> Shapley:
    """Compute φ_i = Σ_S |S|! (n-|S|-1)! / n! · (f(S ∪ i) - f(S)) over all subsets of the n seeds of a host.

    Hosts with fewer than n acting seeds have players that do nothing: these change no other's value.
    """
    rank = (acting.cumsum(dim=1) - 1).clamp(min=0)
    members = torch.arange(2**seeds, device=acting.device)[:, None] >> torch.arange(seeds, device=acting.device) & 1
    answers = evaluate(acting & ~members.bool()[:, rank])
    weights = _weights(members)
    chunks = answers.correct.split(SAMPLES_AT_ONCE, dim=2)
    by_rank = torch.cat([torch.tensordot(weights, chunk.double(), dims=1) for chunk in chunks], dim=2)  # [n, E, N]
    per_sample = by_rank[rank, torch.arange(len(acting), device=acting.device)[:, None]]
    gain = _points(answers.correct[-1]) - _points(answers.correct[0])
    return _result(acting, per_sample, torch.zeros_like(rank, dtype=torch.float64), gain, answers.loss)


def _weights(members: Tensor) -> Tensor:
    """Return the weight of each subset's worth in each player's value, ``[n, 2ⁿ]`` float64."""
    n = members.shape[1]
    # 1 / (n · C(n-1, s)) = s! (n-s-1)! / n!, with s others beside the player.
    weight = torch.tensor([1.0 / (n * comb(n - 1, s)) for s in range(n)], dtype=torch.float64, device=members.device)
    others = (members.sum(dim=1, keepdim=True) - members).clamp(max=n - 1)
    return (weight[others] * (2 * members - 1)).T


def _sampled(acting: Tensor, evaluate: Evaluate, stream: Tensor) -> Shapley:
    """Return the mean marginal over random orders and their reverses; each order and its reverse are one independent
    draw.
    """
    envs, slots = acting.shape
    keys = rng.bits(stream, (PERMUTATION_PAIRS,))
    orders = rng.permutation(keys, slots)  # [E, pairs, K]: at which place each slot comes
    rows = torch.arange(envs, device=acting.device)
    sizes = torch.arange(slots + 1, device=acting.device)[:, None, None]
    per_sample, draws, losses = None, [], []
    gain = torch.zeros(envs, dtype=torch.float64, device=acting.device)
    for place in orders.unbind(dim=1):
        places = (place, slots - 1 - place)
        on = torch.cat([acting & (position < sizes) for position in places])
        answers = evaluate(acting & ~on)
        marginal = torch.zeros((), dtype=torch.float64, device=acting.device)
        for position, correct in zip(places, answers.correct.double().chunk(2), strict=True):
            marginal = marginal + correct.diff(dim=0)[position, rows[:, None]] / 2  # [E, K, N]
        per_sample = marginal if per_sample is None else per_sample + marginal
        draws.append(marginal.mean(dim=2))
        losses.append(answers.loss)
        gain = _points(answers.correct[slots]) - _points(answers.correct[0])
    assert per_sample is not None
    error = 100.0 * torch.stack(draws).std(dim=0) / PERMUTATION_PAIRS**0.5
    return _result(acting, per_sample / PERMUTATION_PAIRS, error, gain, torch.cat(losses))


def _points(correct: Tensor) -> Tensor:
    return 100.0 * correct.double().mean(dim=-1)


def _result(acting: Tensor, per_sample: Tensor, permutation_error: Tensor, gain: Tensor, loss: Tensor) -> Shapley:
    """Make the result from φ per sample ``[E, K, N]`` as fractions and all losses ``[Cfg, E]``."""
    value, error = mean_and_error(per_sample)
    finite = loss.isfinite().all(dim=0)
    known = acting & finite[:, None]
    columns = [torch.where(known, column, torch.nan) for column in (value, error, permutation_error)]
    return Shapley(*columns, gain=torch.where(finite, gain, torch.nan))
