"""Watchdog over each host: which rows are broken, and of what; thresholds are relative to the task's chance."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

import torch
from torch import Tensor

from simic.params import Governor

# Collapse to chance: the host used to be clearly better than a uniform guess and now is within this of its loss.
COLLAPSE_BETTER_THAN = 0.6
COLLAPSE_BAND = 0.065


class Cause(IntEnum):
    """Why a host was rolled back."""

    NONE = 0
    NON_FINITE = 1
    COLLAPSE = 2
    DIVERGENCE = 3


@dataclass(frozen=True)
class Vitals:
    """Memory of the watchdog: healthy losses ``[E, window]``, newest last, NaN = none; anomalies in a row ``[E]``."""

    losses: Tensor
    anomalies: Tensor

    @classmethod
    def empty(cls, envs: int, params: Governor, device: torch.device | str = "cpu") -> Self:
        losses = torch.full((envs, params.window), torch.nan, dtype=torch.float64, device=device)
        return cls(losses, torch.zeros(envs, dtype=torch.int64, device=device))

    def forgotten(self, rows: Tensor) -> Self:
        """Clear the history of ``rows [E]`` bool: a network is not compared with what it was with another seed."""
        return replace(
            self,
            losses=self.losses.masked_fill(rows[:, None], torch.nan),
            anomalies=self.anomalies.masked_fill(rows, 0),
        )


def check(
    vitals: Vitals, loss: Tensor, finite: Tensor, chance: Tensor, params: Governor
) -> tuple[Vitals, Tensor, Tensor]:
    """Check every host after one validation.

    Args:
        vitals: What the watchdog remembers.
        loss: Validation loss of the live network ``[E]``, nats.
        finite: Whether training met no NaN or Inf, bool ``[E]``.
        chance: Loss of a uniform guess, ``[E]`` or ``[1]`` float64, nats.
        params: Thresholds.

    Returns:
        The vitals now, the cause of panic ``[E]`` (Cause), and which rows are healthy, bool ``[E]``. A row that is
        neither in panic nor healthy is an anomaly that has not lasted long enough.
    """
    # NaN and infinity need no history.
    loss = loss.double()
    broken = ~loss.isfinite() | ~finite

    # Rows with enough history: collapsed to chance, or diverged from their mean. Divergence must show in three ways at
    # once (in nats, in deviations, as a multiple), since a host that learns well has a tiny deviation.
    history = (~vitals.losses.isnan()).sum(dim=1)
    mean = vitals.losses.nanmean(dim=1)
    deviation = (vitals.losses - mean[:, None]).square().nanmean(dim=1).sqrt()
    settled = ~broken & (history >= params.min_history)
    collapsed = (
        settled
        & (mean < COLLAPSE_BETTER_THAN * chance)
        & ((loss - chance).abs() < COLLAPSE_BAND * chance)
    )
    anomalous = collapsed | (
        settled
        # A multiple of chance first: below it no host is broken, however much it has lost.
        & (loss > params.absolute_loss_chances * chance)
        & (loss > mean + params.sensitivity_sigmas * deviation)
        & (loss > params.loss_multiplier * mean)
    )

    # An anomaly that lasts is a panic.
    # One bad epoch may mend itself, and a rollback costs the host its unfinished seeds.
    anomalies = torch.where(anomalous, vitals.anomalies + 1, 0)
    cause = torch.full_like(anomalies, Cause.NONE)
    lasting = anomalies >= params.consecutive_panics
    cause = torch.where(
        lasting, torch.where(collapsed, int(Cause.COLLAPSE), int(Cause.DIVERGENCE)), cause
    )
    cause = torch.where(broken, Cause.NON_FINITE, cause)

    # Healthy losses alone are remembered: an anomaly must not become what the next one is compared with.
    healthy = (cause == Cause.NONE) & ~anomalous
    appended = torch.cat((vitals.losses[:, 1:], loss[:, None]), dim=1)
    return Vitals(torch.where(healthy[:, None], appended, vitals.losses), anomalies), cause, healthy
