"""What a host's validation results looked like so far: windows, best values, plateau, stability."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from simic.growth.life.lifecycle import TIE_PCT

WINDOW = 10
# Accuracy gain in points below which an epoch counts as a plateau; a fall counts too.
PLATEAU_PCT = 0.5
# Relative improvement of the loss within which an epoch counts as stable.
STABLE_RANGE = (-0.05, 0.03)
STABLE_EPOCHS = 3


@dataclass(frozen=True)
class Tracker:
    """Histories ``[E, WINDOW]`` with the newest last and NaN where nothing was measured; the rest ``[E]``."""

    losses: Tensor
    accuracies: Tensor  # points
    plateau: Tensor  # epochs in a row without a gain
    best_accuracy: Tensor  # points, of the whole episode
    stable_run: Tensor  # stable epochs in a row
    stabilised: Tensor  # bool, latched for the episode

    @classmethod
    def empty(cls, envs: int, device: torch.device | str = "cpu") -> Self:
        # Tensors are never written in place, so two fields may begin as one.
        history = torch.full((envs, WINDOW), torch.nan, device=device)
        counts = torch.zeros(envs, dtype=torch.int64, device=device)
        best = torch.full((envs,), torch.nan, device=device)
        return cls(
            history,
            history,
            counts,
            best,
            counts,
            torch.zeros(envs, dtype=torch.bool, device=device),
        )

    @property
    def accuracy(self) -> Tensor:
        """The newest live accuracy ``[E]``, points."""
        return self.accuracies[:, -1]

    @property
    def accuracy_delta(self) -> Tensor:
        """The gain over the measurement before ``[E]``, points; NaN where one of the two is missing."""
        return self.accuracies[:, -1] - self.accuracies[:, -2]

    def stable_accuracy(self, epochs: int) -> Tensor:
        """Find the least of the last ``epochs`` accuracies ``[E]``, or of as many as exist; NaN without any."""
        recent = self.accuracies[:, -epochs:]
        least = torch.where(recent.isfinite(), recent, torch.inf).amin(dim=1)
        return torch.where(least.isfinite(), least, torch.nan)


def update(tracker: Tracker, loss: Tensor, accuracy: Tensor) -> Tracker:
    """Add one validation.

    Args:
        tracker: What it was before.
        loss: Validation loss ``[E]``, nats.
        accuracy: Validation accuracy ``[E]``, points.
    """
    # Windows shift by one: tensors are replaced and not written, as earlier states still hold them.
    losses = torch.cat((tracker.losses[:, 1:], loss.to(tracker.losses.dtype)[:, None]), dim=1)
    accuracies = torch.cat(
        (tracker.accuracies[:, 1:], accuracy.to(tracker.accuracies.dtype)[:, None]), dim=1
    )
    gain = accuracies[:, -1] - accuracies[:, -2]
    # The first measurement has no gain: neither a plateau nor an end of one.
    plateau = torch.where(gain.isnan() | (gain >= PLATEAU_PCT - TIE_PCT), 0, tracker.plateau + 1)
    # Stable: the loss hardly moved in either direction, several epochs in a row.
    improvement = (losses[:, -2] - losses[:, -1]) / losses[:, -2]
    low, high = STABLE_RANGE
    # Comparisons with NaN are False: a missing loss is never stable.
    run = torch.where((improvement > low) & (improvement < high), tracker.stable_run + 1, 0)
    # fmax ignores NaN: an epoch that was not measured takes no record away.
    best = torch.fmax(tracker.best_accuracy, accuracies[:, -1])
    return Tracker(
        losses, accuracies, plateau, best, run, tracker.stabilised | (run >= STABLE_EPOCHS)
    )
