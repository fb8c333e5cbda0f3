"""What each seed is worth: accuracies with seeds left out, at live alpha, on the same validation samples (facts §11.1).

Configurations in order: main, all off, committed (only FOSSILIZED seeds on), then one per slot without its seed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simic.growth.lifecycle import ACTIVE_STAGES, in_stages
from simic.growth.vocabulary import Slots, Stage

MAIN, ALL_OFF, COMMITTED, WITHOUT = range(4)  # WITHOUT + k leaves out slot k


@dataclass(frozen=True)
class Attribution:
    """Accuracies ``[E]``, contributions and their paired standard errors ``[E, K]``, all in points; losses ``[E]``.

    NaN = not measured: no seed that acts on the network, or a network whose loss is not finite.
    """

    accuracy: Tensor
    all_off_accuracy: Tensor
    committed_accuracy: Tensor
    loss: Tensor
    committed_loss: Tensor
    contribution: Tensor
    contribution_se: Tensor


def measurable(slots: Slots) -> Tensor:
    """Bool ``[E, K]``: seeds that act on the network, so that leaving them out is a measurement."""
    return in_stages(slots.stage, ACTIVE_STAGES) & (slots.alpha > 0)


def configurations(slots: Slots) -> Tensor:
    """Seeds forced out of the forward, bool ``[3 + K, E, K]``; only seeds that act appear, so equal networks are equal
    rows and need to be run once."""
    acting = measurable(slots)
    envs, count = acting.shape
    alone = torch.eye(count, dtype=torch.bool, device=acting.device)[:, None, :].expand(count, envs, count)
    off = torch.stack((torch.zeros_like(acting), acting, acting & (slots.stage != Stage.FOSSILIZED)))
    return torch.cat((off, alone & acting))


def attribute(slots: Slots, correct: Tensor, loss: Tensor) -> Attribution:
    """Contributions from ``correct [3 + K, E, N]`` bool and ``loss [3 + K, E]`` of ``configurations(slots)``."""
    finite = loss.isfinite()
    accuracy = torch.where(finite, 100.0 * correct.float().mean(dim=2), torch.nan)
    difference, error = paired_difference(correct[MAIN], correct[WITHOUT:])
    measured = measurable(slots) & (finite[MAIN] & finite[WITHOUT:]).T
    return Attribution(
        accuracy=accuracy[MAIN],
        all_off_accuracy=accuracy[ALL_OFF],
        committed_accuracy=accuracy[COMMITTED],
        loss=loss[MAIN],
        committed_loss=loss[COMMITTED],
        contribution=torch.where(measured, difference.T, torch.nan),
        contribution_se=torch.where(measured, error.T, torch.nan),
    )


def paired_difference(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of ``first - second`` over samples, in points, and its standard error; bool ``[..., N]``.

    Paired: the two networks meet the same samples, so the error is that of the per-sample difference in {-1, 0, 1}.
    """
    difference = first.float() - second.float()
    samples = difference.shape[-1]
    return 100.0 * difference.mean(dim=-1), 100.0 * difference.std(dim=-1) / samples**0.5
