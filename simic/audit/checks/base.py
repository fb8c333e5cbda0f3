"""What a check is, and how it is run: inputs first, then the question, never a pass without both."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from simic.audit.findings import Evidence, Layer, Result, Statistic, Status
from simic.audit.limits import Limit
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity

LIVE_SOURCES = ("params", "updates", "steps")  # what exists while training runs

TEXTS = ("title", "question", "threshold", "source", "fix", "passes_when")


# What is counted where a check does not say otherwise, by the source of its first need.
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
    """What examining a run gave; ``severity`` None means the check's own, ``occurred`` None what its needs count."""

    status: Status
    measured: str
    severity: Severity | None = None
    evidence: tuple[Evidence, ...] = ()
    statistics: tuple[Statistic, ...] = ()
    occurred: int | None = None

    def showing(self, *statistics: Statistic) -> Self:
        """With the numbers it rests on."""
        return replace(self, statistics=(*self.statistics, *statistics))

    def of(self, occurred: int) -> Self:
        """With how often what is asked about occurred."""
        return replace(self, occurred=int(occurred))


@dataclass(frozen=True)
class Reading:
    """A number against its limit, and what it means to lie beyond."""

    limit: Limit
    value: float
    severity: Severity | None = None  # the check's own
    evidence: tuple[Evidence, ...] = ()

    @property
    def broken(self) -> bool:
        """No number is never within."""
        return self.limit.broken_by(self.value)

    @property
    def statistic(self) -> Statistic:
        """As it is reported."""
        value = float(self.value)
        finite = value if math.isfinite(value) else None
        of = self.limit
        return Statistic(name=of.name, value=finite, limit=float(of), above=of.above, ours=of.ours)

    def __str__(self) -> str:
        return f"{self.limit.name} {self.value:.3g} (at {'most' if self.limit.above else 'least'} {self.limit:g})"


def passed(measured: str) -> Outcome:
    """The answer is yes, and this is the number."""
    return Outcome(Status.PASS, measured)


def found(measured: str, severity: Severity | None = None, evidence: tuple[Evidence, ...] = ()) -> Outcome:
    """The answer is no, and this is where to look."""
    return Outcome(Status.FINDING, measured, severity, evidence)


def judged(bad: bool | np.bool_ | NDArray[np.bool_], measured: str, evidence: tuple[Evidence, ...] = ()) -> Outcome:
    """A finding of the check's own severity if anything is bad, else a pass."""
    return found(measured, None, evidence) if np.any(bad) else passed(measured)


def weighed(readings: Sequence[Reading]) -> Outcome:
    """By the first reading that is broken, so the gravest come first; a pass where none is."""
    broken = next((reading for reading in readings if reading.broken), None)
    # A number with several limits is said once, with the limit that counts.
    said = {reading.limit.name: reading for reading in reversed(readings)}
    outcome = passed("; ".join(map(str, reversed(said.values()))))
    if broken is not None:
        outcome = found(str(broken), broken.severity, broken.evidence)
    return outcome.showing(*(reading.statistic for reading in readings))


def undecided(reason: str) -> Outcome:
    """There is not enough to answer."""
    return Outcome(Status.NOT_EVALUATED, reason)


class Check(ABC):
    """One question to one run.

    ``needs`` are inputs such as ``updates.approx_kl`` or ``evaluation``; ``minimum`` is how many measured rows each
    column must have. Below either the result is NOT_EVALUATED. Updates that lack a needed number are left out, unless
    ``complete`` is False because a missing number is itself the defect. ``post_hoc`` checks want the whole run;
    ``layer`` is the kind of proof. ``counted`` is what it looks at, one by one.
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
        """Answer the question; all needs are there."""

    def run(self, run: RunRecord) -> Result:
        """The result on a run, whatever is missing."""
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
        """The first of its needs that can be counted."""
        return next((need for need in self.needs if need.partition(".")[0] in UNITS), self.needs[0])

    def occurrences(self, run: RunRecord) -> int:
        """How often what it asks about occurred: as often as the first of its needs was measured."""
        return run.count(self._main)

    @property
    def unit(self) -> str:
        """What ``occurred`` counts."""
        return self.counted or UNITS.get(self._main.partition(".")[0], "run")

    @property
    def live(self) -> bool:
        """Whether it can be decided while training runs."""
        return not self.post_hoc and all(need.split(".")[0] in LIVE_SOURCES for need in self.needs)


def _shown(evidence: Evidence) -> Evidence:
    """What is no number is told in words: JSON has none for it. Iterations are counted from 1, as wherever they are
    shown; the tables count from 0.
    """
    found = {name: str(x) if isinstance(x, float) and not np.isfinite(x) else x for name, x in evidence.items()}
    iteration = found.get("iteration")
    return found | {"iteration": iteration + 1} if isinstance(iteration, int) else found


_REGISTRY: dict[str, Check] = {}


def check(cls: type[Check]) -> type[Check]:
    """Class decorator: register a check under its id."""
    if cls.id in _REGISTRY:
        raise ValueError(f"check {cls.id!r} is registered twice")
    _REGISTRY[cls.id] = cls()
    return cls


def registered() -> tuple[Check, ...]:
    """All checks of the imported families, in order of registration."""
    return tuple(_REGISTRY.values())
