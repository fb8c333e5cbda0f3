"""What each seed is worth: accuracies with seeds left out, at live alpha, on the same validation samples.

Configurations in order: main, all off, committed (only FOSSILIZED seeds on), one per slot without its seed, one per
slot with its seed alone, one per pair of slots with these two alone. Equal networks are equal rows, and run once: with
two acting seeds the pair is main and each alone is the other left out.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Self

import numpy as np
import torch
from torch import Tensor

from simic.growth.batch.groups import Flags
from simic.growth.life.lifecycle import ACTIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Slots
from simic.transfer import constant

MAIN, ALL_OFF, COMMITTED, WITHOUT = range(4)  # WITHOUT + k leaves out slot k


@dataclass(frozen=True)
class Attribution:
    """Accuracies ``[E]``, contributions with their paired standard errors and interactions ``[E, K]``, all in points;
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
    boost: Tensor  # the largest of these interactions, at least 0

    def replaced(self, rows: Tensor, source: Self) -> Self:
        """Take the rows ``[E]`` that are True from ``source``, the others from this."""
        # Accuracies have one value for each host, contributions one for each slot.
        merged = {}
        for name, value in vars(self).items():
            is_row = rows[:, None] if value.ndim == 2 else rows
            merged[name] = torch.where(is_row, getattr(source, name), value)
        return replace(self, **merged)


def measurable(slots: Slots) -> Tensor:
    """Tell which seeds act on the network, so that leaving them out is a measurement, bool ``[E, K]``."""
    return in_stages(slots.stage, ACTIVE_STAGES) & (slots.alpha > 0)


def pairs(slots: int) -> list[tuple[int, int]]:
    """List the pairs of slots in the order of their configurations."""
    return list(combinations(range(slots), 2))


def alone(slots: int, slot: int) -> int:
    """Number the configuration in which only the seed of ``slot`` is on."""
    return WITHOUT + slots + slot


def together(slots: int, first: int, second: int) -> int:
    """Number the configuration in which only the seeds of two slots are on.

    Args:
        slots: How many slots a host has.
        first: Number of one of them.
        second: Number of the other, larger than ``first``.
    """
    return WITHOUT + 2 * slots + pairs(slots).index((first, second))


def most_networks(slots: int) -> int:
    """Count the different networks that one validation of a host runs, at most."""
    return min(2**slots, WITHOUT + 2 * slots + len(pairs(slots)))


def switched_off(acting: Flags, fossilized: Flags) -> Flags:
    """List the seeds forced out of the forward in every configuration, bool ``[3 + 2K + K(K-1)/2, E, K]``.

    ``acting`` and ``fossilized`` ``[E, K]`` are what the CPU knows of the slots; only seeds that act are forced out.
    """
    # On the CPU, so that equal networks can be found and run once without a transfer.
    is_slot = np.eye(acting.shape[1], dtype=bool)  # [k, K]
    main = np.zeros_like(acting)
    committed = acting & ~fossilized
    without_slot = is_slot[:, None] & acting
    slot_alone = ~is_slot[:, None] & acting
    # The order is the one of the page's head: numbers of configurations are computed from it.
    parts = [np.stack((main, acting, committed)), without_slot, slot_alone]
    if couples := pairs(acting.shape[1]):
        first, second = (list(side) for side in zip(*couples, strict=True))
        parts.append(~(is_slot[first] | is_slot[second])[:, None] & acting)
    return np.concatenate(parts)


def attribute(slots: Slots, correct: Tensor, loss: Tensor) -> Attribution:
    """Measure what each seed is worth.

    Args:
        slots: State of all slots ``[E, K]``.
        correct: Answers in every configuration ``[Cfg, E, N]``, bool or shares of a sequence.
        loss: Losses ``[Cfg, E]``, nats.
    """
    # A network whose loss is not finite answers nothing: its accuracy would be an accident of argmax.
    finite = loss.isfinite()
    count = slots.stage.shape[1]
    accuracy = torch.where(
        finite[:WITHOUT], 100.0 * correct[:WITHOUT].float().mean(dim=2), torch.nan
    )
    # A contribution is measured on the same samples with the seed and without it: paired, its error is a fraction of
    # that of two accuracies.
    left_out = slice(WITHOUT, WITHOUT + count)
    # The same samples in the same order in every configuration, or the differences would not be paired.
    lost = correct[MAIN].float() - correct[left_out].float()
    difference, error = mean_and_error(lost)
    measured = measurable(slots) & (finite[MAIN] & finite[left_out]).T
    interaction, boost = _interactions(measurable(slots), correct, finite)
    return Attribution(
        accuracy=accuracy[MAIN],
        all_off_accuracy=accuracy[ALL_OFF],
        committed_accuracy=accuracy[COMMITTED],
        loss=loss[MAIN],
        committed_loss=loss[COMMITTED],
        contribution=torch.where(measured, difference.T, torch.nan),
        contribution_se=torch.where(measured, error.T, torch.nan),
        interaction=interaction,
        boost=boost,
    )


def mean_and_error(differences: Tensor) -> tuple[Tensor, Tensor]:
    """Average paired differences ``[..., N]`` over samples, in points, with the standard error of the mean."""
    samples = differences.shape[-1]
    return 100.0 * differences.mean(dim=-1), 100.0 * differences.std(dim=-1) / samples**0.5


def interaction(correct: Tensor, slots: int, first: int, second: int) -> Tensor:
    """Compute the interaction of two seeds, sample by sample.

    Args:
        correct: Answers in every configuration of ``switched_off``, ``[Cfg, E, N]``.
        slots: How many slots a host has.
        first: Number of one of the two slots.
        second: Number of the other, larger than ``first``.

    Returns:
        What both give together beyond the sum of what each gives, ``[E, N]``.
    """
    # f({i,j}) - f({i}) - f({j}) + f(∅), the Shapley interaction index of two players (Grabisch, Roubens 1999)
    pair = correct[together(slots, first, second)].float()
    singles = correct[alone(slots, first)].float() + correct[alone(slots, second)].float()
    return pair - singles + correct[ALL_OFF].float()


def _interactions(acting: Tensor, correct: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """Add up interactions over partners, and find the largest, ``[E, K]`` points; NaN if none."""
    # Every pair counts for both of its seeds.
    envs, count = acting.shape
    summed = correct.new_zeros((count, envs, correct.shape[2]), dtype=torch.float32)
    # NaN until a pair was measured, so that no pair and no gain stay apart.
    boost = torch.full((envs, count), torch.nan, device=acting.device)
    for i, j in pairs(count):
        networks = (ALL_OFF, alone(count, i), alone(count, j), together(count, i, j))
        are_finite = finite[constant(networks, torch.int64, finite.device)].all(dim=0)
        measured = acting[:, i] & acting[:, j] & are_finite
        # Per sample, so that the sum has its own error.
        samples = torch.where(measured[:, None], interaction(correct, count, i, j), 0.0)
        gain = 100.0 * samples.mean(dim=1).clamp(min=0.0)
        strength = torch.where(measured, gain, torch.nan)
        for k in (i, j):
            summed[k] += samples
            boost[:, k] = torch.fmax(boost[:, k], strength)
    mean = 100.0 * summed.mean(dim=2)
    return torch.where(boost.isnan(), torch.nan, mean.T), boost
