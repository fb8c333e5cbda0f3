"""Terms and modes by name, and what a mode pays for a transition."""

from collections.abc import Callable

import torch
from torch import Tensor

from simic import registry
from simic.envs.rewards.transition import Setting, Transition
from simic.errors import SimicError

Term = Callable[[Transition, Setting], Tensor]
TERMS: dict[str, Term] = {}
MODES: dict[str, tuple[str, ...]] = {}
WEIGHTS: dict[str, str] = {}  # optional term -> its weight in params.ShapedReward
OBJECTIVES: list[str] = []  # terms that are what a mode is about, not help on the way


def term(name: str, weight: str | None = None, objective: bool = False) -> Callable[[Term], Term]:
    """Register a reward term: a pure function ``(Transition, Setting) -> [E]`` float64.

    ``weight`` names the field of ``params.ShapedReward`` that multiplies it: at 0 the term is neither computed nor
    recorded. ``objective`` marks what the mode is about. SimicError where the name is taken.
    """

    def register(function: Term) -> Term:
        if name in TERMS:
            raise SimicError(f"reward term {name!r} is registered twice; choose another name")
        TERMS[name] = function
        if weight is not None:
            WEIGHTS[name] = weight
        if objective:
            OBJECTIVES.append(name)
        return function

    return register


def mode(name: str, terms: tuple[str, ...]) -> None:
    """Register a mode, the sum of registered terms; SimicError for a taken name, a term unknown or listed twice."""
    if name in MODES:
        raise SimicError(f"reward mode {name!r} is registered twice; choose another name")
    if not terms or len(set(terms)) < len(terms):
        raise SimicError(f"reward mode {name!r} has terms {terms}: must be at least one, and each once")
    for item in terms:
        if item not in TERMS:
            raise SimicError(f"reward mode {name!r}: no term {item!r}; registered are {', '.join(TERMS)}")
    MODES[name] = terms
    registry.add(registry.REWARD_MODE, name)


def components(mode: str, transition: Transition, setting: Setting) -> dict[str, Tensor]:
    """Every term of the mode ``[E]`` float64, optional ones of weight 0 left out; their sum is the reward."""
    if mode not in MODES:
        raise SimicError(f"reward mode {mode!r}: must be one of {', '.join(MODES)}")
    parts = {name: TERMS[name](transition, setting) for name in MODES[mode] if _weighs(name, setting)}
    if not parts:
        raise SimicError(f"reward mode {mode!r}: every term has weight 0; set one of {', '.join(MODES[mode])} above it")
    for name, value in parts.items():
        if value.dtype != torch.float64 or value.shape != transition.op.shape:
            expected = f"float64 {tuple(transition.op.shape)}"
            raise SimicError(f"reward term {name!r} gave {value.dtype} {tuple(value.shape)}: must be {expected}")
    return parts


def _weighs(name: str, setting: Setting) -> bool:
    return name not in WEIGHTS or getattr(setting.weights.shaped, WEIGHTS[name]) != 0.0


def total(parts: dict[str, Tensor]) -> Tensor:
    """The reward ``[E]`` float64; added one after the other, so that a host's sum does not depend on its company."""
    first, *rest = parts.values()
    for value in rest:
        first = first + value
    return first
