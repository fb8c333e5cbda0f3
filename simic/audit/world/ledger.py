"""Collects comparisons: of each thing that is compared many times, the worst one."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from simic.audit.comparison import Comparison

ALL = "all"
ENOUGH, OF_FEW = 3, 3.0  # comparisons for a median to say something; how much more a group's may be than that of all
TIMES = 10.0  # what rounding does by itself: so much may a deviation be where that is more than what is typical


class Ledger:
    """``allowed`` is the bound of each thing by name; what it does not name must agree exactly.

    Some things agree closely nearly always and less so now and then, where a value lies on a kink of the network:
    their medians are compared too, of all and of groups of alike ones, with the bound in ``typical``. Where many values
    lie on kinks, ``rounding`` tells how far apart rounding alone brings two results, and the deviation counts for less.
    """

    def __init__(self, allowed: Mapping[str, float], typical: Mapping[str, float]) -> None:
        self._allowed, self._typical = allowed, typical
        self._worst: dict[str, Comparison] = {}
        self._all: dict[str, dict[str, list[float]]] = {what: {} for what in typical}

    def note(
        self,
        what: str,
        where: str,
        deviation: float,
        groups: Collection[str] = (),
        rounding: Callable[[], float] | None = None,
    ) -> None:
        """One more; the first one out of bounds is what is told, else the worst."""
        if what in self._all:
            counts = deviation
            if rounding is not None and self._typical[what] < deviation < math.inf:
                counts *= min(1.0, self._typical[what] / (TIMES * rounding() or self._typical[what]))
            for group in (ALL, *groups):
                self._all[what].setdefault(group, []).append(counts)
        found = Comparison(what, where, deviation, self._allowed.get(what, 0.0))
        known = self._worst.get(what)
        if known is None or (known.ok and not deviation <= known.deviation):
            self._worst[what] = found

    def number(self, what: str, where: str, found: float, expected: float) -> None:
        """Two numbers; NaN agrees with NaN alone."""
        self.numbers(what, where, [found], [expected])

    def numbers(self, what: str, where: str, found: Sequence[float], expected: Sequence[float]) -> None:
        """Two rows of numbers, by the largest difference."""
        if len(found) != len(expected):
            self.note(what, f"{where}: {len(found)} numbers, not {len(expected)}", math.inf)
            return
        self.note(what, where, max((_apart(a, b) for a, b in zip(found, expected, strict=True)), default=0.0))

    def tensors(
        self,
        what: str,
        where: str,
        found: Tensor,
        expected: Tensor,
        scale: float = 1.0,
        groups: Collection[str] = (),
        rounded: Callable[[], Tensor] | None = None,
    ) -> None:
        """Two tensors, by the norm of their difference over ``scale``; ``rounded`` is what rounding alone makes of the
        expected one.
        """
        if found.shape != expected.shape:
            self.note(what, f"{where}: shape {tuple(found.shape)}, not {tuple(expected.shape)}", math.inf)
            return
        difference = _distance(found, expected)
        rounding = None if rounded is None else lambda: _distance(rounded(), expected) / scale
        self.note(what, where, difference / scale if difference else 0.0, groups, rounding)

    def comparisons(self) -> tuple[Comparison, ...]:
        """In the order in which things were first compared, then the medians."""
        return (*self._worst.values(), *(self._usual(what, groups) for what, groups in self._all.items() if groups))

    def _usual(self, what: str, groups: Mapping[str, list[float]]) -> Comparison:
        """The largest median of a group."""
        found = [
            Comparison(
                what=f"{what}, median",
                where=f"{group}: {len(deviations)} comparisons",
                deviation=median(deviations),
                allowed=self._typical[what] * (1.0 if group == ALL else OF_FEW),
            )
            for group, deviations in groups.items()
            if group == ALL or len(deviations) >= ENOUGH
        ]
        return max(found, key=lambda comparison: (not comparison.ok, comparison.deviation / comparison.allowed))


def _distance(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.vector_norm(a.double() - b.double()))


def _apart(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return 0.0 if a == b else abs(a - b)
