"""A log of recorded values beside derived ones: the worst deviation of each kind."""

import math
from collections.abc import Mapping, Sequence
from statistics import quantiles

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor


class Comparison(BaseModel):
    """Hold ``count`` comparisons of one kind: ``where`` the deviation is largest, and its bound."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    what: str
    where: str
    deviation: float | None  # null: not finite
    allowed: float | None  # null: bounded by the third quartile alone
    count: int
    ok: bool

    @classmethod
    def of(cls, what: str, where: str, deviation: float, allowed: float, count: int) -> "Comparison":
        """Compare a deviation with its bound; NaN is never within."""
        shown, bound = (value if math.isfinite(value) else None for value in (deviation, allowed))
        return cls(what=what, where=where, deviation=shown, allowed=bound, count=count, ok=deviation <= allowed)


class ComparisonLog:
    """Collect comparisons by kind. ``allowed`` has the bound of each kind; a kind not named must agree exactly. For
    kinds in ``typical`` the third quartile is bounded too: they agree closely except where a value lies on a kink of
    the network.
    """

    def __init__(self, allowed: Mapping[str, float], typical: Mapping[str, float] | None = None) -> None:
        self._allowed, self._typical = allowed, typical or {}
        self._worst: dict[str, tuple[str, float]] = {}  # where, and the deviation
        self._counts: dict[str, int] = {}
        self._all: dict[str, list[float]] = {}

    def note(self, what: str, where: str, deviation: float) -> None:
        """Add a deviation: the first out of bounds is kept, else the largest."""
        self._counts[what] = self._counts.get(what, 0) + 1
        if what in self._typical:
            self._all.setdefault(what, []).append(deviation)
        _, known = self._worst.get(what, ("", -math.inf))
        if known <= self._allowed.get(what, 0.0) and not deviation <= known:
            self._worst[what] = where, deviation

    def equal(self, what: str, where: str, same: bool) -> None:
        """Add whether two things that must be the same are."""
        self.note(what, where, 0.0 if same else 1.0)

    def number(self, what: str, where: str, recorded: float, expected: float, scale: float = 1.0) -> None:
        """Add two numbers; NaN agrees with NaN alone."""
        self.numbers(what, where, [recorded], [expected], scale)

    def numbers(
        self, what: str, where: str, recorded: Sequence[float], expected: Sequence[float], scale: float = 1.0
    ) -> None:
        """Add two rows of numbers, by the largest difference as a share of ``scale``."""
        if len(recorded) != len(expected):
            self.note(what, f"{where}: {len(recorded)} numbers, not {len(expected)}", math.inf)
            return
        apart = max((_apart(a, b) for a, b in zip(recorded, expected, strict=True)), default=0.0)
        self.note(what, where, apart / (scale or 1.0))

    def tensors(self, what: str, where: str, recorded: Tensor, expected: Tensor, least: float = 0.0) -> None:
        """Add two tensors, by the largest difference as a share of the largest expected value, at least ``least``."""
        if recorded.shape != expected.shape:
            self.note(what, f"{where}: shape {tuple(recorded.shape)}, not {tuple(expected.shape)}", math.inf)
        elif recorded.numel():
            scale = max(least, float(expected.abs().max())) or 1.0
            self.note(what, where, float((recorded.double() - expected).abs().max()) / scale)

    def changes(
        self, what: str, where: str, before: Mapping[str, Tensor], recorded: Mapping[str, Tensor],
        expected: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """Add tensors by name, each by the norm of its difference as a share of the norm of its change, or of the
        largest change of all where it hardly changed.
        """
        if recorded.keys() != expected.keys():
            self.note(what, f"{where}: {', '.join(sorted(recorded.keys() ^ expected.keys()))}", math.inf)
            return
        changed = {name: _norm(x - before[name]) for name, x in expected.items()}
        least = HARDLY * max(changed.values())
        for name, x in expected.items():
            self.note(what, f"{where}, {name}", _norm(recorded[name] - x) / (max(changed[name], least) or 1.0))

    def comparisons(self) -> tuple[Comparison, ...]:
        """Return the worst of each kind in the order of their first comparison, then the quartiles."""
        worst = [
            Comparison.of(what, where, deviation, self._allowed.get(what, 0.0), self._counts[what])
            for what, (where, deviation) in self._worst.items()
        ]
        typical = [
            Comparison.of(
                f"{what}, third quartile", f"{len(values)} comparisons", _quartile(values), self._typical[what], 1
            )
            for what, values in self._all.items()
        ]
        return (*worst, *typical)


HARDLY = 0.1  # of the largest change of any tensor


def _quartile(values: list[float]) -> float:
    return quantiles(values, n=4)[2] if len(values) > 1 else values[0]


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double()))


def _apart(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return 0.0 if a == b else abs(a - b)
