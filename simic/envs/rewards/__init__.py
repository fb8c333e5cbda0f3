"""Rewards as sums of small pure terms on one transition (s, effective op, s').

Every term is ``(transition, setting) -> [E]`` float64 and registered by name; a mode is a tuple of names. A term and a
mode of your own, in a file of yours::

    from simic.envs.rewards import mode, term

    @term("per_seed")
    def per_seed(transition, setting):
        \"\"\"A hundredth for every fossilized seed, each step.\"\"\"
        return 0.01 * (transition.after.stage == 5).sum(dim=1).double()

    mode("mine", ("shaping", "terminal", "per_seed", "death"))

What pays for states rather than for steps is an exact discounted difference (``differences.py``), so that no closed
loop earns. Memory across steps is in ``Ledgers``, advanced alike in every mode, so that any mode can be computed for
any recorded transition.
"""

from simic.envs.rewards import modes  # noqa: F401 - registers the shipped modes
from simic.envs.rewards.differences import attribution, shaping
from simic.envs.rewards.ledgers import advance
from simic.envs.rewards.potential import credit, potential, progress, significant
from simic.envs.rewards.registration import MODES, OBJECTIVES, TERMS, Term, components, mode, term, total
from simic.envs.rewards.transition import Ledgers, Setting, Transition, score

__all__ = [
    "MODES",
    "OBJECTIVES",
    "TERMS",
    "Ledgers",
    "Setting",
    "Term",
    "Transition",
    "advance",
    "attribution",
    "components",
    "credit",
    "mode",
    "potential",
    "progress",
    "score",
    "shaping",
    "significant",
    "term",
    "total",
]
