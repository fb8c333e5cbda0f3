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
    kind: str
    label: str
    deviation: float | None  # null: not finite
    allowed: float | None  # null: bounded by the third quartile alone
    count: int
    ok: bool

    @classmethod
    def of(
        cls, kind: str, label: str, deviation: float, allowed: float, count: int
    ) -> "Comparison":
        """Compare a deviation with its bound; NaN is never within."""
        finite, bound = (value if math.isfinite(value) else None for value in (deviation, allowed))
        return cls(
            kind=kind,
            label=label,
            deviation=finite,
            allowed=bound,
            count=count,
            ok=deviation <= allowed,
        )


class ComparisonLog:
    """Collect deviations by kind. ``allowed`` has the bound of each kind; a kind not named must agree exactly. For
    kinds in ``typical`` the third quartile is bounded too: they agree closely except where a value lies on a kink of
    the network.
    """

    def __init__(
        self, allowed: Mapping[str, float], quartiles: Mapping[str, float] | None = None
    ) -> None:
        self._allowed = allowed
        self._typical = quartiles or {}
        self._noted: dict[str, list[tuple[float, str]]] = {}  # deviations, and where

    def note(self, kind: str, label: str, deviation: float) -> None:
        self._noted.setdefault(kind, []).append((deviation, label))

    def equal(self, kind: str, label: str, same: bool) -> None:
        """Add whether two things that must be the same are."""
        self.note(kind, label, 0.0 if same else 1.0)

    def number(
        self,
        kind: str,
        label: str,
        recorded: float,
        expected: float,
        scale: float = 1.0,
        explained: float = 0.0,
    ) -> None:
        """Add two numbers; NaN agrees with NaN alone."""
        self.numbers(kind, label, [recorded], [expected], scale, explained)

    def numbers(
        self, kind: str, label: str, recorded: Sequence[float], expected: Sequence[float], scale: float = 1.0,
        explained: float = 0.0,
    ) -> None:  # fmt: skip
        """Add two rows of numbers, by how far the largest difference exceeds ``explained``, as a share of ``scale``."""
        if len(recorded) != len(expected):
            self.note(kind, f"{label}: {len(recorded)} numbers, not {len(expected)}", math.inf)
            return
        difference = max(
            (_apart(a, b) for a, b in zip(recorded, expected, strict=True)), default=0.0
        )
        self.note(kind, label, max(0.0, difference - explained) / (scale or 1.0))

    def tensors(
        self, kind: str, label: str, recorded: Tensor, expected: Tensor, least: float = 0.0
    ) -> None:
        """Add two tensors, by the largest difference as a share of the largest expected value, at least ``least``."""
        if recorded.shape != expected.shape:
            self.note(
                kind,
                f"{label}: shape {tuple(recorded.shape)}, not {tuple(expected.shape)}",
                math.inf,
            )
        elif recorded.numel():
            scale = max(least, float(expected.abs().max())) or 1.0
            self.note(kind, label, float((recorded.double() - expected).abs().max()) / scale)

    def changes(
        self, kind: str, label: str, before: Mapping[str, Tensor], recorded: Mapping[str, Tensor],
        expected: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """Add tensors by name, each by the norm of its difference as a share of the norm of its change, or of the
        largest change of all where it hardly changed.
        """
        if recorded.keys() != expected.keys():
            self.note(
                kind, f"{label}: {', '.join(sorted(recorded.keys() ^ expected.keys()))}", math.inf
            )
            return
        changed = {name: _norm(x - before[name]) for name, x in expected.items()}
        least = HARDLY * max(changed.values())
        for name, x in expected.items():
            self.note(
                kind,
                f"{label}, {name}",
                _norm(recorded[name] - x) / (max(changed[name], least) or 1.0),
            )

    def comparisons(self) -> tuple[Comparison, ...]:
        """Return of each kind the first out of bounds, else the largest, in the order of their first comparison; then
        the quartiles.
        """
        largest = []
        quartiles = []
        for kind, deviations in self._noted.items():
            allowed = self._allowed.get(kind, 0.0)
            values = [deviation for deviation, _ in deviations]
            out = (each for each in deviations if not each[0] <= allowed)
            deviation, label = next(out, max(deviations, key=lambda each: each[0]))
            largest.append(Comparison.of(kind, label, deviation, allowed, len(deviations)))
            if kind in self._typical:
                quartile = quantiles(values, n=4)[2] if len(values) > 1 else values[0]
                title = f"{kind}, third quartile", f"{len(values)} comparisons"
                quartiles.append(Comparison.of(*title, quartile, self._typical[kind], 1))
        return (*largest, *quartiles)


HARDLY = 0.1  # of the largest change of any tensor


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double()))


def _apart(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return 0.0 if a == b else abs(a - b)
