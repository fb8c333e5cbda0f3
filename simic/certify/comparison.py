"""What was recorded beside what was derived again: of each thing that is compared many times, the worst."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles

import torch
from torch import Tensor


@dataclass(frozen=True)
class Comparison:
    """``what`` was compared ``count`` times, ``where`` it deviates most, by how much, and how much is allowed."""

    what: str
    where: str
    deviation: float
    allowed: float
    count: int = 1

    @property
    def ok(self) -> bool:
        """Return whether it is within its bound; NaN never is."""
        return self.deviation <= self.allowed


class ComparisonLog:
    """``allowed`` is the bound of each thing by name; what it does not name must agree exactly. Of things in
    ``typical`` the third quartiles are compared too: they agree closely nearly always, and less so where a value lies
    on a kink of the network.
    """

    def __init__(self, allowed: Mapping[str, float], typical: Mapping[str, float] | None = None) -> None:
        self._allowed, self._typical = allowed, typical or {}
        self._worst: dict[str, Comparison] = {}
        self._counts: dict[str, int] = {}
        self._all: dict[str, list[float]] = {}

    def note(self, what: str, where: str, deviation: float) -> None:
        """Add one: the first out of bounds is kept, else the largest."""
        self._counts[what] = self._counts.get(what, 0) + 1
        if what in self._typical:
            self._all.setdefault(what, []).append(deviation)
        known = self._worst.get(what)
        if known is None or (known.ok and not deviation <= known.deviation):
            self._worst[what] = Comparison(what, where, deviation, self._allowed.get(what, 0.0))

    def equal(self, what: str, where: str, same: bool) -> None:
        """Add what must be the same."""
        self.note(what, where, 0.0 if same else 1.0)

    def number(self, what: str, where: str, found: float, expected: float, scale: float = 1.0) -> None:
        """Add two numbers; NaN agrees with NaN alone."""
        self.numbers(what, where, [found], [expected], scale)

    def numbers(
        self, what: str, where: str, found: Sequence[float], expected: Sequence[float], scale: float = 1.0
    ) -> None:
        """Add two rows of numbers, by the largest difference as a share of ``scale``."""
        if len(found) != len(expected):
            self.note(what, f"{where}: {len(found)} numbers, not {len(expected)}", math.inf)
            return
        apart = max((_apart(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)
        self.note(what, where, apart / (scale or 1.0))

    def tensors(self, what: str, where: str, found: Tensor, expected: Tensor, least: float = 0.0) -> None:
        """Add two tensors, by the largest difference as a share of the largest expected value, at least ``least``."""
        if found.shape != expected.shape:
            self.note(what, f"{where}: shape {tuple(found.shape)}, not {tuple(expected.shape)}", math.inf)
        elif found.numel():
            scale = max(least, float(expected.abs().max())) or 1.0
            self.note(what, where, float((found.double() - expected).abs().max()) / scale)

    def changes(
        self, what: str, where: str, before: Mapping[str, Tensor], found: Mapping[str, Tensor],
        expected: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """Add tensors by name, each by the norm of its difference as a share of the norm of its change, or of the
        largest change of all where it hardly changed.
        """
        if found.keys() != expected.keys():
            self.note(what, f"{where}: {', '.join(sorted(found.keys() ^ expected.keys()))}", math.inf)
            return
        changed = {name: _norm(x - before[name]) for name, x in expected.items()}
        least = HARDLY * max(changed.values())
        for name, x in expected.items():
            self.note(what, f"{where}, {name}", _norm(found[name] - x) / (max(changed[name], least) or 1.0))

    def comparisons(self) -> tuple[Comparison, ...]:
        """Return them in the order in which things were first compared, then the quartiles."""
        worst = [
            Comparison(each.what, each.where, each.deviation, each.allowed, self._counts[what])
            for what, each in self._worst.items()
        ]
        usual = [
            Comparison(f"{what}, third quartile", f"{len(found)} comparisons", _quartile(found), self._typical[what])
            for what, found in self._all.items()
        ]
        return (*worst, *usual)


HARDLY = 0.1  # of the largest change of any tensor


def _quartile(found: list[float]) -> float:
    return quantiles(found, n=4)[2] if len(found) > 1 else found[0]


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double()))


def _apart(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return 0.0 if a == b else abs(a - b)
