"""Checks: inputs are verified before the question is asked; without them a check never passes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simic.audit import limits
from simic.audit.findings import Evidence, Layer, Result, Statistic, Status
from simic.audit.limits import Limit
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity

Values = NDArray[np.float64]
OURS = limits.source()
MOST_EVIDENCE = 5  # rows shown of a finding

LIVE_SOURCES = ("params", "updates", "steps")  # what exists while training runs


@dataclass(frozen=True)
class Outcome:
    """Hold the outcome of a check; without a ``severity`` it is the check's own."""

    status: Status
    measured: str
    severity: Severity | None = None
    evidence: Sequence[Evidence] = ()
    statistics: Sequence[Statistic] = ()


@dataclass(frozen=True)
class Reading:
    """Compare a number with its limit; ``severity`` and ``evidence`` are of a finding."""

    limit: Limit
    value: float
    severity: Severity | None = None  # the check's own
    evidence: Sequence[Evidence] = ()

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


def failed(measured: str, severity: Severity | None = None, evidence: Sequence[Evidence] = ()) -> Outcome:
    """Return a finding."""
    return Outcome(Status.FINDING, measured, severity, evidence)


def undecided(reason: str) -> Outcome:
    """Return that the check could not be evaluated."""
    return Outcome(Status.NOT_EVALUATED, reason)


def judged(evidence: Sequence[Evidence], measured: str) -> Outcome:
    """Return a finding if there is evidence of one, else a pass."""
    return failed(measured, None, evidence) if evidence else passed(measured)


def weighed(readings: Sequence[Reading]) -> Outcome:
    """Return a finding of the first broken reading (the gravest come first), or a pass."""
    statistics = [reading.statistic for reading in readings]
    broken = next((reading for reading in readings if reading.broken), None)
    if broken is not None:
        return Outcome(Status.FINDING, str(broken), broken.severity, broken.evidence, statistics)
    # A number with several limits appears once, with its first limit.
    said = {reading.limit.name: reading for reading in reversed(readings)}
    return Outcome(Status.PASS, "; ".join(map(str, reversed(said.values()))), statistics=statistics)


Examine = Callable[[RunRecord], Outcome]


@dataclass(frozen=True, kw_only=True)
class Check:
    """Ask one question of one run.

    ``needs`` are inputs such as ``updates.approx_kl`` or ``evaluation``; ``minimum`` is the number of measured rows
    that each column must have. Without them the result is NOT_EVALUATED. Updates that lack a needed number are left
    out, unless ``complete`` is False because a missing number is itself the defect. ``examine`` answers; all needs are
    met then. ``post_hoc`` checks need the whole run; ``layer`` is the kind of proof.
    """

    id: str
    title: str
    question: str
    severity: Severity
    needs: tuple[str, ...]
    threshold: str
    source: str
    fix: str
    examine: Examine
    minimum: int = 1
    complete: bool = True
    post_hoc: bool = False
    layer: Layer = "symptom"
    subject: Literal["any", "growth", "gym"] = "any"  # the task of the runs that it is about

    def run(self, run: RunRecord) -> Result:
        """Return the result on a run, NOT_EVALUATED where needs are missing."""
        chosen = run.complete(self.needs) if self.complete else run
        missing = chosen.missing(self.needs, self.minimum)
        outcome = undecided(missing) if missing else self.examine(chosen)
        return Result(
            check=self.id,
            layer=self.layer,
            title=self.title,
            status=outcome.status,
            severity=outcome.severity or self.severity,
            question=self.question,
            measured=outcome.measured,
            statistics=tuple(outcome.statistics),
            threshold=self.threshold,
            source=self.source,
            evidence=tuple(_shown(each) for each in outcome.evidence[:MOST_EVIDENCE]),
            fix=self.fix,
        )

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


def check(**about: Any) -> Callable[[Examine], Examine]:
    """Register a function as the check that these fields of ``Check`` describe."""

    def register(examine: Examine) -> Examine:
        made = Check(examine=examine, **about)
        if made.id in _REGISTRY:
            raise ValueError(f"check {made.id!r} is registered twice")
        _REGISTRY[made.id] = made
        return examine

    return register


of_growth = partial(check, subject="growth")


def registered() -> tuple[Check, ...]:
    """Return all checks of the imported families, in order of registration."""
    return tuple(_REGISTRY.values())


# --- evidence and small statistics of several checks -----------------------------------------------------------------


def where(run: RunRecord, name: str, bad: NDArray[np.bool_]) -> list[Evidence]:
    """Return the worst rows of an update metric: iteration and value."""
    values, iterations = run.updates.column(name), run.updates.column("iteration")
    rows = np.flatnonzero(bad)
    order = rows[np.argsort(-np.abs(np.nan_to_num(values[rows], nan=np.inf)), kind="stable")][:MOST_EVIDENCE]
    return [{"iteration": int(iterations[i]), name: float(values[i])} for i in order]


def where_steps(run: RunRecord, bad: NDArray[np.bool_], name: str, values: NDArray[Any]) -> list[Evidence]:
    """Return the first bad steps, each with its entry of ``values``, called ``name``."""
    iterations, steps = run.steps.column("iteration"), run.steps.column("step")
    return [
        {"iteration": int(iterations[r]), "step": int(steps[r]), "env": int(e), name: values[r, e].item()}
        for r, e in np.argwhere(bad)[:MOST_EVIDENCE]
    ]


def episodes(run: RunRecord) -> list[NDArray[np.intp]]:
    """Return row indices of each iteration's steps, in order."""
    iterations = run.steps.column("iteration")
    order = np.lexsort((run.steps.column("step"), iterations))
    return np.split(order, np.flatnonzero(np.diff(iterations[order])) + 1)


def windows(values: Values, width: int) -> Values:
    """Return all stretches of ``width`` consecutive values, ``[n - width + 1, width]``; of fewer values one stretch."""
    return np.lib.stride_tricks.sliding_window_view(values, min(width, len(values)))
