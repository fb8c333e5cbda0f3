"""Hand-written rules for Gymnasium environments: one function each, registered in an extension."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from simic.errors import SimicError

# Returns the action, as the environment takes it, from all observations of this episode, the newest last, and from what
# the masks allow, by head.
Rule = Callable[[Sequence[np.ndarray], Mapping[str, np.ndarray]], Any]
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register a rule, as a decorator; SimicError where the name is taken."""

    # Names of the players that are always there: a rule of that name would hide one.
    if name in (*RULES, "random", "peer", "learned", "learned_sampled", "blind"):
        raise SimicError(f"rule {name!r}: the name is taken; choose another")

    def register(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return register


def named(name: str) -> Rule:
    """Look up a registered rule; SimicError naming those that are there."""
    if name not in RULES:
        names = ", ".join(RULES) or "none is registered: name its file in extensions"
        raise SimicError(f"headroom.gym.rules: {name!r}: must be one of @rule: {names}")
    return RULES[name]
