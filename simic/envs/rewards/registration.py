"""Terms and modes by name, and what a mode pays for a transition."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from simic import registry
from simic.envs.rewards.transition import Setting, Transition
from simic.errors import SimicError
from simic.growth.life.vocabulary import Slots

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
    """Return the reward ``[E]`` float64; added one after the other, so that a host's sum does not depend on its
    company.
    """
    first, *rest = parts.values()
    for value in rest:
        first = first + value
    return first
