"""What a reward may look at: one step (s, effective op, s') of E hosts, what is remembered, and the run's setting."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.growth.life.vocabulary import Slots, Stage
from simic.params import Reward, Train

Values = TypeVar("Values", Tensor, NDArray[np.float64])


def score(committed_accuracy: Values, added: Values, host_params: int, price: float) -> Values:
    """Return what an episode is about, in points, of the same shape as both: accuracy of what was kept, less the price
    of its ``added`` parameters in units of the host's.
    """
    return committed_accuracy - price * (added / host_params)


@dataclass(frozen=True)
class Transition:
    """One step of E hosts; ``seed_params`` count parameters incl. gates ``[E, K]``, accuracies are points."""

    before: Slots
    after: Slots
    op: Tensor  # effective Op [E]
    slot: Tensor  # its target [E]
    seed_params_before: Tensor
    seed_params_after: Tensor
    stable_accuracy: Tensor  # [E] least live accuracy of the last few validations up to s'
    committed_accuracy_before: Tensor  # [E] of s: host and FOSSILIZED seeds only
    committed_accuracy: Tensor  # [E] of s'
    loss: Tensor  # [E] of s', live network, nats
    committed_loss: Tensor  # [E]
    ended: Tensor  # bool [E]: this was step T and the host is not panicked
    terminal: Tensor  # bool [E]: s' is a true terminal (T under episode_end: terminate, or a rollback)
    panicked: Tensor  # bool [E]: the governor rolled this host back in this step
    ledgers: dict[str, Tensor]  # of s: what the mode remembers, by name

    @property
    def renewed(self) -> Tensor:
        """Bool ``[E, K]``: a seed germinated in this step; what is remembered of the one before it is not its own."""
        return self.after.germinations != self.before.germinations

    @property
    def kept_params(self) -> Tensor:
        """Parameters of the fossilized seeds of s' ``[E]``, float64."""
        return _kept(self.after, self.seed_params_after)

    @property
    def kept_params_before(self) -> Tensor:
        """Parameters of the fossilized seeds of s ``[E]``, float64."""
        return _kept(self.before, self.seed_params_before)


def _kept(slots: Slots, seed_params: Tensor) -> Tensor:
    return torch.where(slots.stage == Stage.FOSSILIZED, seed_params, 0).sum(dim=1).double()


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
        """Return the setting of a run; gamma is the agent's, or shaping would change the task (Ng, Harada, Russell
        1999).
        """
        budget = train.lifecycle.param_budget
        return cls(train.reward, train.ppo.gamma, episode_steps, host_params, budget, train.price, chance_loss)
