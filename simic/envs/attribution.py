"""What each seed is worth: accuracies with seeds left out, at live alpha, on the same validation samples.

Configurations in order: main, all off, committed (only FOSSILIZED seeds on), one per slot without its seed, one per
slot with its seed alone, one per pair of slots with these two alone. Equal networks are equal rows, and run once: with
two acting seeds the pair is main and each alone is the other left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import Self

import numpy as np
import torch
from torch import Tensor

from simic import rng
from simic.growth.batch.groups import Flags
from simic.growth.batch.population import Answers
from simic.growth.life.lifecycle import ACTIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Slots
from simic.transfer import constant

MAIN, ALL_OFF, COMMITTED, WITHOUT = range(4)  # WITHOUT + k leaves out slot k


@dataclass(frozen=True)
class Attribution:
    """Accuracies ``[E]``, contributions, interactions and their paired standard errors ``[E, K]``, all in points;
    losses ``[E]`` in nats.

    NaN = not measured: no seed that acts on the network (of interactions: no two), or a loss that is not finite.
    """

    accuracy: Tensor
    all_off_accuracy: Tensor
    committed_accuracy: Tensor
    loss: Tensor
    committed_loss: Tensor
    contribution: Tensor
    contribution_se: Tensor
    interaction: Tensor  # sum over the other acting seeds
    interaction_se: Tensor
    boost: Tensor  # the largest of these interactions, at least 0

    def replaced(self, rows: Tensor, other: Self) -> Self:
        """Return ``other`` in the given rows ``[E]``, this elsewhere."""
        merged = {}
        for name, value in vars(self).items():
            chosen = rows[:, None] if value.ndim == 2 else rows
            merged[name] = torch.where(chosen, getattr(other, name), value)
        return replace(self, **merged)


def measurable(slots: Slots) -> Tensor:
    """Return bool ``[E, K]``: seeds that act on the network, so that leaving them out is a measurement."""
    return in_stages(slots.stage, ACTIVE_STAGES) & (slots.alpha > 0)


def pairs(slots: int) -> list[tuple[int, int]]:
    """Return the pairs of slots in the order of their configurations."""
    return list(combinations(range(slots), 2))


def alone(slots: int, slot: int) -> int:
    """Return the configuration in which only the seed of ``slot`` is on."""
    return WITHOUT + slots + slot


def together(slots: int, first: int, second: int) -> int:
    """Return the configuration in which only the seeds of two slots are on, ``first < second``."""
    return WITHOUT + 2 * slots + pairs(slots).index((first, second))


def most_networks(slots: int) -> int:
    """Return the largest number of different networks that one validation of a host runs."""
    return min(2**slots, WITHOUT + 2 * slots + len(pairs(slots)))


def switched_off(acting: Flags, fossilized: Flags) -> Flags:
    """Return the seeds forced out of the forward, bool ``[3 + 2K + K(K-1)/2, E, K]``, of what the CPU knows about the
    slots, ``[E, K]``; only seeds that act appear.
    """
    one = np.eye(acting.shape[1], dtype=bool)
    parts = [np.stack((np.zeros_like(acting), acting, acting & ~fossilized)), one[:, None] & acting]
    parts.append(~one[:, None] & acting)
    if couples := pairs(acting.shape[1]):
        first, second = (list(side) for side in zip(*couples, strict=True))
        parts.append(~(one[first] | one[second])[:, None] & acting)
    return np.concatenate(parts)


def attribute(slots: Slots, correct: Tensor, loss: Tensor) -> Attribution:
    """Return what ``correct [Cfg, E, N]`` (bool, or shares of a sequence) and ``loss [Cfg, E]`` say of each seed."""
    finite = loss.isfinite()
    count = slots.stage.shape[1]
    accuracy = torch.where(finite[:WITHOUT], 100.0 * correct[:WITHOUT].float().mean(dim=2), torch.nan)
    left_out = slice(WITHOUT, WITHOUT + count)
    difference, error = mean_and_error(correct[MAIN].float() - correct[left_out].float())
    measured = measurable(slots) & (finite[MAIN] & finite[left_out]).T
    interaction, interaction_error, boost = _interactions(measurable(slots), correct, finite)
    return Attribution(
        accuracy=accuracy[MAIN],
        all_off_accuracy=accuracy[ALL_OFF],
        committed_accuracy=accuracy[COMMITTED],
        loss=loss[MAIN],
        committed_loss=loss[COMMITTED],
        contribution=torch.where(measured, difference.T, torch.nan),
        contribution_se=torch.where(measured, error.T, torch.nan),
        interaction=interaction,
        interaction_se=interaction_error,
        boost=boost,
    )


def mean_and_error(differences: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of paired differences ``[..., N]`` over samples, in points, and its standard error."""
    samples = differences.shape[-1]
    return 100.0 * differences.mean(dim=-1), 100.0 * differences.std(dim=-1) / samples**0.5


def interaction(correct: Tensor, slots: int, first: int, second: int) -> Tensor:
    """Return f({i,j}) - f({i}) - f({j}) + f(∅) per sample ``[E, N]`` of ``switched_off``; ``first < second``."""
    both = correct[together(slots, first, second)].float()
    each = correct[alone(slots, first)].float() + correct[alone(slots, second)].float()
    return both - each + correct[ALL_OFF].float()


def _interactions(acting: Tensor, correct: Tensor, finite: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum over partners, its paired standard error and the largest, ``[E, K]`` points; NaN if none."""
    envs, count = acting.shape
    summed = correct.new_zeros((count, envs, correct.shape[2]), dtype=torch.float32)
    boost = torch.full((envs, count), torch.nan, device=acting.device)
    for i, j in pairs(count):
        used = ALL_OFF, alone(count, i), alone(count, j), together(count, i, j)
        measured = acting[:, i] & acting[:, j] & finite[constant(used, torch.int64, finite.device)].all(dim=0)
        samples = torch.where(measured[:, None], interaction(correct, count, i, j), 0.0)
        strength = torch.where(measured, 100.0 * samples.mean(dim=1).clamp(min=0.0), torch.nan)
        for k in (i, j):
            summed[k] += samples
            boost[:, k] = torch.fmax(boost[:, k], strength)
    mean, error = mean_and_error(summed)
    missing = boost.isnan()
    return torch.where(missing, torch.nan, mean.T), torch.where(missing, torch.nan, error.T), boost


# --- Shapley values: exact for few seeds, by antithetic permutations for many; the values of a host's seeds sum to what
# all of them gain together ---

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
