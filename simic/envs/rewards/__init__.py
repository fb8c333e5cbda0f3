"""Rewards as sums of small pure terms on one transition (s, effective op, s').

Every term is ``(transition, setting) -> [E]`` float64 and registered by name; a mode is a tuple of names. A term and a
mode of your own, in a file of yours::

    from simic.envs.rewards import mode, term

    @term("per_seed")
    def per_seed(transition, setting):
        \"\"\"A hundredth for every fossilized seed, each step.\"\"\"
        return 0.01 * (transition.after.stage == 5).sum(dim=1).double()

    mode("mine", ("shaping", "terminal", "per_seed", "death"))

What pays for states rather than for steps is an exact discounted difference, so that no closed loop earns. What a mode
remembers from step to step it names as ledgers (see ``shaped.py``); no other mode computes them.
"""

from simic.envs.rewards import default, loss, shaped  # noqa: F401 - they register the shipped modes
from simic.envs.rewards.transition import (
    MODES,
    OBJECTIVES,
    TERMS,
    Setting,
    Transition,
    advance,
    components,
    mode,
    start,
    term,
    total,
)

__all__ = [
    "MODES",
    "OBJECTIVES",
    "TERMS",
    "Setting",
    "Transition",
    "advance",
    "components",
    "mode",
    "start",
    "term",
    "total",
]
