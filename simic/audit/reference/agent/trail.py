"""One step of an optimizer in float32 against the same step in float64, from the same weights and moments.

Step by step, since what rounds differently in one step is another training a hundred steps later. Moments say whether
the gradient was right; weights, whether they moved as those moments say. So it does not matter that Adam makes as much
of a gradient that is nothing but rounding as of any other.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from simic.audit.reference.agent.adam import Optimized, Rule, Tensors

ROUNDING = 2.0**-22  # of the largest value: what is kept in float32, after a sum or two
HARDLY = 0.1  # of the largest change of any tensor: one that changed less is measured by this


@dataclass(frozen=True)
class Stray:
    """The largest deviation of weights or moments, as a share of the largest change of their tensor, and of which."""

    deviation: float
    name: str

    @classmethod
    def worst(cls, found: Iterable["Stray"]) -> "Stray":
        """NaN is the worst of all; 0 of nothing."""
        return max(found, key=lambda s: math.inf if math.isnan(s.deviation) else s.deviation, default=cls(0.0, ""))


@dataclass(frozen=True)
class Strayed:
    """How far a step went from what it should have been."""

    weights: Stray
    first: Stray
    second: Stray

    @classmethod
    def of(cls, before: Optimized, derived: Optimized, done: Optimized, rule: Rule) -> "Strayed":
        """``derived`` is the step in float64; where there is none it is ``before``, and nothing may have moved."""
        if derived is before:
            pairs = ((done.weights, before.weights), (done.first, before.first), (done.second, before.second))
            return cls(*(_unmoved(found, expected) for found, expected in pairs))
        follows = before.moved(done.first, done.second, rule)
        return cls(
            _stray(before.weights, follows.weights, done.weights),
            _stray(before.first, derived.first, done.first),
            _stray(before.second, derived.second, done.second),
        )


def _unmoved(found: Tensors, expected: Tensors) -> Stray:
    return Stray.worst(Stray(0.0 if torch.equal(found[name], expected[name]) else math.inf, name) for name in expected)


def _stray(before: Tensors, expected: Tensors, found: Tensors) -> Stray:
    sizes, changes = _largest(expected), _largest({name: x - before[name] for name, x in expected.items()})
    off = _largest({name: found[name] - x for name, x in expected.items()})
    least = max(HARDLY * max(changes.values()), 2.0**-126)  # the least normal float32
    return Stray.worst(
        Stray(_beyond(off[name], ROUNDING * sizes[name]) / max(changes[name], least), name) for name in expected
    )


def _largest(tensors: Tensors) -> dict[str, float]:
    return dict(zip(tensors, torch.stack([x.abs().max() for x in tensors.values()]).tolist(), strict=True))


def _beyond(off: float, rounding: float) -> float:
    """NaN stays NaN."""
    return off if math.isnan(off) else max(0.0, off - rounding)
