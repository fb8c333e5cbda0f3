"""What a reward may look at: one step (s, effective op, s') of E hosts, what is remembered, and the run's setting."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.growth.life.vocabulary import Slots
from simic.params import Reward, Train

Values = TypeVar("Values", Tensor, NDArray[np.float64])


@dataclass(frozen=True)
class Ledgers:
    """What some modes remember from step to step, float64; advanced in every mode by ``ledgers.advance``.

    ``escrow``: credit advanced to unfossilized seeds. ``drip_rate``: what a fossilized seed pays per step while it
    contributes ``drip_contribution`` points. ``boosts``: discounted sum of the interactions a seed had.
    """

    escrow: Tensor  # [E, K]
    drip_rate: Tensor  # [E, K]
    drip_contribution: Tensor  # [E, K]
    boosts: Tensor  # [E, K]
    tracked_loss: Tensor  # [E] nats: the loss that improvement has been paid down to
    first_accuracy: Tensor  # [E] points, committed, before anything was trained
    score: Tensor  # [E] points

    @classmethod
    def start(cls, slots: int, loss: Tensor, committed_accuracy: Tensor, chance_loss: Tensor) -> "Ledgers":
        """At a reset, with the first validation's ``loss`` and ``committed_accuracy`` ``[E]``."""
        nothing = torch.zeros(len(loss), slots, dtype=torch.float64, device=loss.device)
        level, accuracy = bounded_loss(loss, chance_loss), committed_accuracy.double().nan_to_num(0.0)
        return cls(nothing, nothing, nothing, nothing, level, first_accuracy=accuracy, score=accuracy)


def bounded_loss(loss: Tensor, chance_loss: Tensor) -> Tensor:
    """Loss in nats, float64, at most that of a uniform guess: nothing is worse than knowing nothing."""
    known = loss.double()
    return torch.minimum(torch.where(known.isnan(), chance_loss, known), chance_loss)


def score(committed_accuracy: Values, added: Values, host_params: int, price: float) -> Values:
    """What an episode is about, in points, of the same shape as both: accuracy of what was kept, less the price of its
    ``added`` parameters in units of the host's.
    """
    return committed_accuracy - price * (added / host_params)


@dataclass(frozen=True)
class Transition:
    """One step of E hosts; ``seed_params`` count parameters incl. gates ``[E, K]``, accuracies are points.

    Interactions ``[E, K]`` are sums over a seed's partners in points, 0 where below two standard errors or unmeasured.
    """

    before: Slots
    after: Slots
    op: Tensor  # effective Op [E]
    slot: Tensor  # its target [E]
    step: int  # 1…T
    seed_params_before: Tensor
    seed_params_after: Tensor
    interaction_before: Tensor
    interaction_after: Tensor
    stable_accuracy: Tensor  # [E] least live accuracy of the last few validations up to s'
    committed_accuracy: Tensor  # [E] of s': host and FOSSILIZED seeds only
    loss: Tensor  # [E] of s', live network, nats
    committed_loss: Tensor  # [E]
    ended: Tensor  # bool [E]: this was step T and the host is not panicked
    terminal: Tensor  # bool [E]: s' is a true terminal (T under episode_end: terminate, or a rollback)
    panicked: Tensor  # bool [E]: the governor rolled this host back in this step
    ledgers: Ledgers  # of s

    @property
    def renewed(self) -> Tensor:
        """Bool ``[E, K]``: a seed germinated in this step; what is remembered of the one before it is not its own."""
        return self.after.germinations != self.before.germinations


@dataclass(frozen=True)
class Setting:
    """What all transitions of a run share."""

    weights: Reward
    gamma: float
    episode_steps: int
    host_params: int
    param_budget: float  # times the host's parameters
    price: float  # points, of as many parameters as the host's
    chance_loss: Tensor  # [E] or [1] float64, nats: of a uniform guess

    @classmethod
    def of(cls, train: Train, host_params: int, chance_loss: Tensor, episode_steps: int) -> "Setting":
        """The setting of a run; gamma is the agent's, or shaping would change the task (Ng, Harada, Russell 1999)."""
        budget = train.lifecycle.param_budget
        return cls(train.reward, train.ppo.gamma, episode_steps, host_params, budget, train.price, chance_loss)
