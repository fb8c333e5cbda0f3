"""The base class of checks: inputs are verified before the question is asked; without them a check never passes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from simic.audit import limits
from simic.audit.findings import Evidence, Layer, Result, Statistic, Status
from simic.audit.limits import Limit
from simic.audit.record import RunRecord
from simic.certify import streams
from simic.telemetry.rows import Severity

Values = NDArray[np.float64]
OURS = limits.source()
MOST_EVIDENCE = 5  # rows shown of a finding

# Settings of several checks; all ours.
ENOUGH_ROWS = 32  # what is measured of a head on fewer rows is noise
PERSISTENT = 5  # consecutive updates: as many as the default run has without its first
NOISE = 2.0  # standard errors

LIVE_SOURCES = ("params", "updates", "steps")  # what exists while training runs

TEXTS = ("title", "question", "threshold", "source", "fix", "passes_when")


# Unit of ``occurred`` by the source of a check's first need, unless the check names one.
UNITS = {
    "updates": "update",
    "steps": "step of a host",
    "episodes": "episode of a host",
    "validations": "validation episode",
    "timing": "iteration",
    "evaluation": "evaluation seed",
    "certificate": "comparison",
}


@dataclass(frozen=True)
class Outcome:
    """Hold the outcome of a check. None: ``severity`` is the check's own, ``occurred`` the count of its first need."""

    status: Status
    measured: str
    severity: Severity | None = None
    evidence: tuple[Evidence, ...] = ()
    statistics: tuple[Statistic, ...] = ()
    occurred: int | None = None

    def showing(self, *statistics: Statistic) -> Self:
        """Add the numbers that the outcome rests on."""
        return replace(self, statistics=(*self.statistics, *statistics))

    def of(self, occurred: int) -> Self:
        """Set how often the condition in question occurred."""
        return replace(self, occurred=int(occurred))


@dataclass(frozen=True)
class Reading:
    """Compare a number with its limit; ``severity`` and ``evidence`` are of a finding."""

    limit: Limit
    value: float
    severity: Severity | None = None  # the check's own
    evidence: tuple[Evidence, ...] = ()

    @property
    def broken(self) -> bool:
        """Tell whether the number lies beyond its limit; NaN does."""
        return self.limit.broken_by(self.value)

    @property
    def statistic(self) -> Statistic:
        """Return the number as it is reported."""
        value = float(self.value)
        finite = value if math.isfinite(value) else None
        of = self.limit
        return Statistic(name=of.name, value=finite, limit=float(of), above=of.above, ours=of.ours)

    def __str__(self) -> str:
        return f"{self.limit.name} {self.value:.3g} (at {'most' if self.limit.above else 'least'} {self.limit:g})"


def passed(measured: str) -> Outcome:
    """Return a pass."""
    return Outcome(Status.PASS, measured)


def failed(measured: str, severity: Severity | None = None, evidence: tuple[Evidence, ...] = ()) -> Outcome:
    """Return a finding."""
    return Outcome(Status.FINDING, measured, severity, evidence)


def judged(bad: bool | np.bool_ | NDArray[np.bool_], measured: str, evidence: tuple[Evidence, ...] = ()) -> Outcome:
    """Return a finding of the check's own severity if anything is bad, else a pass."""
    return failed(measured, None, evidence) if np.any(bad) else passed(measured)


def weighed(readings: Sequence[Reading]) -> Outcome:
    """Return a finding of the first broken reading (the gravest come first), or a pass."""
    broken = next((reading for reading in readings if reading.broken), None)
    # A number with several limits appears once, with its first limit.
    said = {reading.limit.name: reading for reading in reversed(readings)}
    outcome = passed("; ".join(map(str, reversed(said.values()))))
    if broken is not None:
        outcome = failed(str(broken), broken.severity, broken.evidence)
    return outcome.showing(*(reading.statistic for reading in readings))


def undecided(reason: str) -> Outcome:
    """Return that the check could not be evaluated."""
    return Outcome(Status.NOT_EVALUATED, reason)


class Check(ABC):
    """Ask one question of one run.

    ``needs`` are inputs such as ``updates.approx_kl`` or ``evaluation``; ``minimum`` is the number of measured rows
    that each column must have. Without them the result is NOT_EVALUATED. Updates that lack a needed number are left
    out, unless ``complete`` is False because a missing number is itself the defect. ``post_hoc`` checks need the whole
    run; ``layer`` is the kind of proof; ``counted`` is the unit of ``occurred``.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    severity: ClassVar[Severity]
    question: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    minimum: ClassVar[int] = 1
    complete: ClassVar[bool] = True
    post_hoc: ClassVar[bool] = False
    layer: ClassVar[Layer] = "symptom"
    counted: ClassVar[str] = ""
    threshold: ClassVar[str]
    source: ClassVar[str]
    fix: ClassVar[str]
    passes_when: ClassVar[str]

    @abstractmethod
    def examine(self, run: RunRecord) -> Outcome:
        """Answer the question; all needs are met."""

    def run(self, run: RunRecord) -> Result:
        """Return the result on a run, NOT_EVALUATED where needs are missing."""
        chosen = run.complete(self.needs) if self.complete else run
        missing = chosen.missing(self.needs, self.minimum)
        outcome = undecided(missing) if missing else self.examine(chosen)
        occurred = self.occurrences(chosen) if outcome.occurred is None else outcome.occurred
        if not occurred and outcome.status is Status.PASS:
            outcome = undecided(f"no {self.unit} in this run")
        return Result(
            check=self.id,
            layer=self.layer,
            status=outcome.status,
            severity=outcome.severity or self.severity,
            measured=outcome.measured,
            occurred=occurred,
            counted=self.unit,
            statistics=outcome.statistics,
            evidence=tuple(_shown(each) for each in outcome.evidence),
            **{text: getattr(self, text) for text in TEXTS},
        )

    @property
    def _main(self) -> str:
        """Return the first need that can be counted."""
        return next((need for need in self.needs if need.partition(".")[0] in UNITS), self.needs[0])

    def occurrences(self, run: RunRecord) -> int:
        """Count how often the first countable need was measured."""
        return run.count(self._main)

    @property
    def unit(self) -> str:
        """Return the unit of ``occurred``."""
        return self.counted or UNITS.get(self._main.partition(".")[0], "run")

    @property
    def live(self) -> bool:
        """Tell whether the check can be decided while training runs."""
        return not self.post_hoc and all(need.split(".")[0] in LIVE_SOURCES for need in self.needs)


def _shown(evidence: Evidence) -> Evidence:
    """Return evidence as it is reported: non-finite numbers as words (JSON has none), iterations counted from 1."""
    shown = {name: str(x) if isinstance(x, float) and not np.isfinite(x) else x for name, x in evidence.items()}
    iteration = shown.get("iteration")
    return shown | {"iteration": iteration + 1} if isinstance(iteration, int) else shown


_REGISTRY: dict[str, Check] = {}


def check(cls: type[Check]) -> type[Check]:
    """Register a check under its id (class decorator)."""
    if cls.id in _REGISTRY:
        raise ValueError(f"check {cls.id!r} is registered twice")
    _REGISTRY[cls.id] = cls()
    return cls


def registered() -> tuple[Check, ...]:
    """Return all checks of the imported families, in order of registration."""
    return tuple(_REGISTRY.values())


# --- evidence and small statistics of several checks -----------------------------------------------------------------


def where(run: RunRecord, name: str, bad: NDArray[np.bool_]) -> tuple[Evidence, ...]:
    """Return the worst rows of an update metric: iteration and value."""
    values, iterations = run.updates.column(name), run.updates.column("iteration")
    rows = np.flatnonzero(bad)
    order = rows[np.argsort(-np.abs(np.nan_to_num(values[rows], nan=np.inf)), kind="stable")][:MOST_EVIDENCE]
    return tuple({"iteration": int(iterations[i]), name: _plain(values[i])} for i in order)


def where_steps(run: RunRecord, bad: NDArray[np.bool_], name: str, values: NDArray[Any]) -> tuple[Evidence, ...]:
    """Return the first bad steps, each with its entry of ``values``, called ``name``."""
    iterations, steps = run.steps.column("iteration"), run.steps.column("step")
    return tuple(
        {"iteration": int(iterations[r]), "step": int(steps[r]), "env": int(e), name: _plain(values[r, e])}
        for r, e in np.argwhere(bad)[:MOST_EVIDENCE]
    )


def _plain(value: Any) -> float | str:
    return float(value) if isinstance(value, np.floating) and np.isfinite(value) else str(value)


def episodes(run: RunRecord) -> list[NDArray[np.intp]]:
    """Return row indices of each iteration's steps, in order."""
    iterations = run.steps.column("iteration")
    order = np.lexsort((run.steps.column("step"), iterations))
    return np.split(order, np.flatnonzero(np.diff(iterations[order])) + 1)


def length_of(run: RunRecord, iteration: int) -> int:
    """Return the length of the training episodes of an iteration by the params."""
    return streams.episode_length(run.params.train.episode_steps, run.params.rng_seed, iteration)


def windows(values: Values, width: int) -> Values:
    """Return all stretches of ``width`` consecutive values, ``[n - width + 1, width]``; of fewer values one stretch."""
    return np.lib.stride_tricks.sliding_window_view(values, min(width, len(values)))
