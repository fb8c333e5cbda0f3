"""Collects comparisons: of each thing that is compared many times, the worst one."""

import math
from collections.abc import Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from simic.audit.comparison import Comparison


class Ledger:
    """``allowed`` is the bound of each thing by name; what it does not name must agree exactly.

    Some things agree closely nearly always and less so now and then, where a value lies on a kink of the network:
    their median is compared too, under its own name, with the bound in ``typical``.
    """

    def __init__(self, allowed: Mapping[str, float], typical: Mapping[str, float]) -> None:
        self._allowed, self._typical = allowed, typical
        self._worst: dict[str, Comparison] = {}
        self._all: dict[str, list[float]] = {what: [] for what in typical}

    def note(self, what: str, where: str, deviation: float) -> None:
        """One more; the first one out of bounds is what is told, else the worst."""
        if what in self._all:
            self._all[what].append(deviation)
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

    def tensors(self, what: str, where: str, found: Tensor, expected: Tensor, scale: float = 1.0) -> None:
        """Two tensors, by the norm of their difference over ``scale``."""
        if found.shape != expected.shape:
            self.note(what, f"{where}: shape {tuple(found.shape)}, not {tuple(expected.shape)}", math.inf)
            return
        difference = float(torch.linalg.vector_norm(found.double() - expected.double()))
        self.note(what, where, difference / scale if difference else 0.0)

    def comparisons(self) -> tuple[Comparison, ...]:
        """In the order in which things were first compared."""
        usual = [
            Comparison(f"{what}, median", f"{len(found)} comparisons", median(found), self._typical[what])
            for what, found in self._all.items()
            if found
        ]
        return (*self._worst.values(), *usual)


def _apart(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return 0.0 if a == b else abs(a - b)
