"""The limits of all symptoms.

Limits of ours are the worst of clean runs times 1.5, but no stricter than by judgement: clean runs are short and small,
and longer ones may get further. ``python -m benchmarks.calibration`` measures them again and prints what to write here,
``CLEAN_RUNS`` too; a test compares both with its result. A check with several limits has a line for each.
"""

import math
from functools import partial
from typing import Self

CLEAN_RUNS = 57  # behind the limits of ours; none: they are by judgement
ENOUGH_RUNS = 30  # fewer calibrate nothing
ROOM = 1.5  # times the worst of them


class Limit(float):
    """Hold a number and the name of the statistic it limits. ``above``: larger is worse. ``bound``: what the statistic
    cannot exceed (or fall below). ``judged``: the number by judgement, which calibration only loosens. ``ours``: it is
    in no publication.
    """

    name: str
    above: bool
    bound: float
    judged: float
    ours: bool

    def __new__(
        cls,
        name: str,
        value: float,
        bound: float | None = None,
        *,
        judged: float | None = None,
        above: bool = True,
        ours: bool = True,
    ) -> Self:
        """Create the number with its attributes."""
        made = super().__new__(cls, value)
        made.name, made.above, made.ours = name, above, ours
        furthest = math.inf if above else -math.inf
        made.bound = furthest if bound is None else bound
        made.judged = -furthest if judged is None else judged
        return made

    def broken_by(self, value: float) -> bool:
        """Tell whether a value lies beyond the limit; NaN does."""
        return not (value <= self if self.above else value >= self)

    def calibrated(self, worst: float) -> float:
        """Return the limit for the worst value of clean runs: 1.5 times as far from 0, at most half the way to
        ``bound``, no stricter than ``judged``; three significant digits.
        """
        further = worst * ROOM if (worst > 0) == self.above else worst / ROOM
        half = (worst + self.bound) / 2
        limit = max(min(further, half), self.judged) if self.above else min(max(further, half), self.judged)
        return float(f"{limit:.3g}")


_REGISTRY: list[Limit] = []


def ours(name: str, value: float, bound: float | None = None, *, judged: float, above: bool = True) -> Limit:
    """Register a limit that clean runs stay below."""
    limit = Limit(name, value, bound, judged=judged, above=above)
    _REGISTRY.append(limit)
    return limit


at_least = partial(ours, above=False)  # that clean runs stay above
published = partial(Limit, ours=False)  # of a publication, a definition or floating-point arithmetic


def every() -> tuple[Limit, ...]:
    """Return all limits of ours in order."""
    return tuple(_REGISTRY)


def source() -> str:
    """Return the source of our limits in words."""
    by = f"worst of {CLEAN_RUNS} clean runs x {ROOM:g}, or by judgement where that is laxer"
    return f"ours, {by}" if CLEAN_RUNS else "ours, by judgement"


# R: how far an update moves the policy
LARGEST_MEAN_RATIO = published("largest mean ratio", 10.0)
LARGEST_RATIO = ours("largest ratio", 19, judged=5.0)
SMALLEST_RATIO = at_least("smallest ratio", 0.0123, 0.0, judged=0.1)
SUSTAINED_KL = published("sustained KL", 0.02)
HIGH_KL = published("sustained KL", 0.05)
CRITICAL_KL = published("sustained KL", 0.1)
LARGEST_KL = published("largest KL", 1e-8, above=False)
KL_OF_ONE_UPDATE = ours("KL of one update", 0.25, judged=0.25)

# E: whether it explores
LEAST_ENTROPY = at_least("least entropy early on", 0.05, 0.0, judged=0.05)
SWING_OF_ENTROPY = ours("swing of entropy", 0.478, 1.0, judged=0.3)
FROM_UNIFORM = at_least("distance of entropy from its maximum at the end", 0.05, 0.0, judged=0.05)

# V: critic
EXPLAINED_VARIANCE = published("explained variance kept up", 0.0, above=False)
LATE_EXPLAINED_VARIANCE = at_least("explained variance late on", 0.2, judged=0.2)
UNEXPLAINED_EARLY = at_least("unexplained variance early on", 0.01, 0.0, judged=0.01)

# G, H: gradients, memory
SKIPPED_STEPS = published("steps skipped as not finite", 0.0)
LARGE_GRADIENTS = ours("share of updates with large gradients", 0.429, 1.0, judged=0.1)
UNCLIPPED_STEPS = at_least("share of steps that are not clipped", 0.01, 0.0, judged=0.01)
SHARE_OF_HEAD = at_least("smallest share of a head in the gradient", 0.00325, 0.0, judged=0.01)
ROWS_OF_HEAD = published("fewest rows of a head", 32.0, above=False)
BAD_MEMORY = ours("share of updates in which the hidden state is out of range", 0.5, 1.0, judged=0.5)

# P, M: rewards, environment
RETURN_AGAINST_OBJECTIVE = ours("rise of returns that the objective does not follow", 0.5, 1.0, judged=0.5)
HARMFUL_SEEDS = ours("share of fossilizations that harmed the host", 0.2, 1.0, judged=0.2)
SOME_HARMFUL_SEEDS = ours("share of seeds kept that harmed their host", 0.002, 1.0, judged=0.002)
WRONG_ROWS = published("rows whose validity is wrong", 0.0)
