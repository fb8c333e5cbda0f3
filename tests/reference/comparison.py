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
    """Collect deviations by kind. ``allowed`` has the bound of each kind; a kind not named must agree exactly. For
    kinds in ``typical`` the third quartile is bounded too: they agree closely except where a value lies on a kink of
    the network.
    """

    def __init__(self, allowed: Mapping[str, float], typical: Mapping[str, float] | None = None) -> None:
        self._allowed, self._typical = allowed, typical or {}
        self._noted: dict[str, list[tuple[float, str]]] = {}  # deviations, and where

    def note(self, what: str, where: str, deviation: float) -> None:
        self._noted.setdefault(what, []).append((deviation, where))

    def equal(self, what: str, where: str, same: bool) -> None:
        """Add whether two things that must be the same are."""
        self.note(what, where, 0.0 if same else 1.0)

    def number(
        self, what: str, where: str, recorded: float, expected: float, scale: float = 1.0, explained: float = 0.0
    ) -> None:
        """Add two numbers; NaN agrees with NaN alone."""
        self.numbers(what, where, [recorded], [expected], scale, explained)

    def numbers(
        self, what: str, where: str, recorded: Sequence[float], expected: Sequence[float], scale: float = 1.0,
        explained: float = 0.0,
    ) -> None:  # fmt: skip
        """Add two rows of numbers, by how far the largest difference exceeds ``explained``, as a share of ``scale``."""
        if len(recorded) != len(expected):
            self.note(what, f"{where}: {len(recorded)} numbers, not {len(expected)}", math.inf)
            return
        apart = max((_apart(a, b) for a, b in zip(recorded, expected, strict=True)), default=0.0)
        self.note(what, where, max(0.0, apart - explained) / (scale or 1.0))

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
        """Return of each kind the first out of bounds, else the largest, in the order of their first comparison; then
        the quartiles.
        """
        worst, typical = [], []
        for what, noted in self._noted.items():
            allowed, values = self._allowed.get(what, 0.0), [deviation for deviation, _ in noted]
            out = (each for each in noted if not each[0] <= allowed)
            deviation, where = next(out, max(noted, key=lambda each: each[0]))
            worst.append(Comparison.of(what, where, deviation, allowed, len(noted)))
            if what in self._typical:
                quartile = quantiles(values, n=4)[2] if len(values) > 1 else values[0]
                said = f"{what}, third quartile", f"{len(values)} comparisons"
                typical.append(Comparison.of(*said, quartile, self._typical[what], 1))
        return (*worst, *typical)


HARDLY = 0.1  # of the largest change of any tensor


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double()))


def _apart(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return 0.0 if a == b else abs(a - b)
