"""What a reward may look at: one step (s, effective op, s') of hosts, the run's setting; terms and modes by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic import registry
from simic.errors import SimicError
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
        """Return bool ``[E, K]``: a seed germinated in this step, and has nothing of what is remembered of another."""
        return self.after.germinations != self.before.germinations

    @property
    def kept_params(self) -> Tensor:
        """Return the parameters of the fossilized seeds of s' ``[E]``, float64."""
        return _kept(self.after, self.seed_params_after)

    @property
    def kept_params_before(self) -> Tensor:
        """Return the parameters of the fossilized seeds of s ``[E]``, float64."""
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
        """Return a run's setting; a gamma other than the agent's would change the task (Ng, Harada, Russell 1999)."""
        budget = train.lifecycle.param_budget
        return cls(train.reward, train.ppo.gamma, episode_steps, host_params, budget, train.price, chance_loss)


# --- registration ----------------------------------------------------------------------------------------------------

Term = Callable[[Transition, Setting], Tensor]


class Ledger(NamedTuple):
    """Memory of a mode, float64: ``start(slots, loss [E], setting)`` is its value after a reset, with the loss of the
    first validation; ``after(transition, setting)`` that of s'.
    """

    start: Callable[[Slots, Tensor, Setting], Tensor]
    after: Term


TERMS: dict[str, Term] = {}
MODES: dict[str, tuple[str, ...]] = {}
LEDGERS: dict[str, Mapping[str, Ledger]] = {}  # by mode
OBJECTIVES: list[str] = []  # terms that are what a mode is about, not help on the way


def term(name: str, objective: bool = False) -> Callable[[Term], Term]:
    """Register a reward term: a pure function ``(Transition, Setting) -> [E]`` float64.

    ``objective`` marks what the mode is about. SimicError where the name is taken.
    """

    def register(function: Term) -> Term:
        if name in TERMS:
            raise SimicError(f"reward term {name!r} is registered twice; choose another name")
        TERMS[name] = function
        if objective:
            OBJECTIVES.append(name)
        return function

    return register


def mode(name: str, terms: tuple[str, ...], ledgers: Mapping[str, Ledger] | None = None) -> None:
    """Register a mode, the sum of registered terms; ``ledgers`` are what its terms find in ``Transition.ledgers``.

    SimicError for a taken name, a term unknown or listed twice.
    """
    if name in MODES:
        raise SimicError(f"reward mode {name!r} is registered twice; choose another name")
    if not terms or len(set(terms)) < len(terms):
        raise SimicError(f"reward mode {name!r} has terms {terms}: must be at least one, and each once")
    for item in terms:
        if item not in TERMS:
            raise SimicError(f"reward mode {name!r}: no term {item!r}; registered are {', '.join(TERMS)}")
    MODES[name], LEDGERS[name] = terms, ledgers or {}
    registry.add(registry.REWARD_MODE, name)


def start(mode: str, slots: Slots, loss: Tensor, setting: Setting) -> dict[str, Tensor]:
    """Return the ledgers of a mode after a reset, with the first validation's ``loss [E]``."""
    return {name: ledger.start(slots, loss, setting) for name, ledger in LEDGERS[mode].items()}


def advance(mode: str, transition: Transition, setting: Setting) -> dict[str, Tensor]:
    """Return the ledgers of s'."""
    return {name: ledger.after(transition, setting) for name, ledger in LEDGERS[mode].items()}


def components(mode: str, transition: Transition, setting: Setting) -> dict[str, Tensor]:
    """Return every term of the mode ``[E]`` float64; their sum is the reward."""
    if mode not in MODES:
        raise SimicError(f"reward mode {mode!r}: must be one of {', '.join(MODES)}")
    parts = {name: TERMS[name](transition, setting) for name in MODES[mode]}
    for name, value in parts.items():
        if value.dtype != torch.float64 or value.shape != transition.op.shape:
            expected = f"float64 {tuple(transition.op.shape)}"
            raise SimicError(f"reward term {name!r} gave {value.dtype} {tuple(value.shape)}: must be {expected}")
    return parts


def total(parts: dict[str, Tensor]) -> Tensor:
    """Return the reward ``[E]`` float64; added one by one, so that a host's sum does not depend on its company."""
    first, *rest = parts.values()
    for value in rest:
        first = first + value
    return first
