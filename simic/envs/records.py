"""The bundles of tensors an environment hands out and keeps."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from simic.envs.attribution import Attribution
from simic.envs.governor import Vitals
from simic.envs.tracker import Tracker
from simic.growth.batch.statistics import TrainStats
from simic.growth.life.vocabulary import Slots


@dataclass(frozen=True)
class StepInfo:
    """What happened in one step; accuracies in points, NaN = not measured, ``[E]`` where nothing else is said."""

    effective_op: Tensor  # -1 in the info of a reset
    gate: Tensor  # the gate the op asked, -1 = none
    gate_passed: Tensor
    components: dict[str, Tensor]  # of the reward, float64; empty in the info of a reset
    live_accuracy: Tensor
    committed_accuracy: Tensor  # host + FOSSILIZED seeds, all others off
    score: Tensor  # points: committed accuracy less the price of what it took
    all_off_accuracy: Tensor
    val_loss: Tensor
    train_loss: Tensor
    host_grad_norm: Tensor  # mean over the epoch's minibatches, before clipping
    seed_grad_norm: Tensor  # [E, K], likewise
    contribution: Tensor  # [E, K]
    contribution_se: Tensor  # [E, K]
    stage: Tensor  # [E, K]
    blueprint: Tensor  # [E, K]
    alpha: Tensor  # [E, K]
    params: Tensor  # host and live seeds
    committed_params: Tensor  # host and FOSSILIZED seeds
    flops: Tensor  # per sample, host and live seeds
    committed_flops: Tensor  # per sample, host and FOSSILIZED seeds
    panicked: Tensor  # rolled back in this step
    cause: Tensor  # governor.Cause of it
    valid: Tensor  # False in all steps after a rollback: such rows are no experience
    replaced: Tensor  # bool [E, K]: a live seed made room for the one germinated in this step


@dataclass(frozen=True)
class Trials:
    """What each blueprint has shown in this episode, in whichever slot, ``[E, P]``."""

    tried: Tensor  # int64, how often it germinated
    gained: Tensor  # points, the last contribution measured; NaN = never

    @classmethod
    def none(cls, envs: int, blueprints: int, device: torch.device) -> Self:
        tried = torch.zeros(envs, blueprints, dtype=torch.int64, device=device)
        return cls(tried, torch.full((envs, blueprints), torch.nan, device=device))

    def after(self, slots: Slots, germinated: Tensor) -> Self:
        """Add what one epoch measured of the seeds of ``slots``; ``germinated [E, K]`` bool began before it."""
        # Slot by slot: two slots may hold the same blueprint, and a scatter of both at once has no order.
        tried = self.tried
        gained = self.gained
        for slot in range(slots.shape[1]):
            column = slice(slot, slot + 1)
            # A free slot has no blueprint: it writes to column 0 what already stands there.
            kind = slots.blueprint[:, column].clamp(min=0)
            tried = tried.scatter_add(1, kind, germinated[:, column].long())
            contribution = slots.contribution[:, column]
            is_measured = (slots.blueprint[:, column] >= 0) & contribution.isfinite()
            gained = gained.scatter(
                1, kind, torch.where(is_measured, contribution, gained.gather(1, kind))
            )
        return replace(self, tried=tried, gained=gained)


@dataclass(frozen=True)
class EpisodeState:
    """All that an episode mutates beside the population."""

    slots: Slots
    tracker: Tracker
    vitals: Vitals
    alive: Tensor  # bool [E]: no rollback yet in this episode
    measured: Attribution
    trained: TrainStats
    effective_op: Tensor
    succeeded: Tensor
    seed_params: Tensor  # [E, K]
    ledgers: dict[str, Tensor]  # what the reward mode remembers
    trials: Trials
