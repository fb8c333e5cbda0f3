"""Checks: inputs are verified before the question is asked; without them a check never passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simic.audit.findings import Evidence, Layer, Result, Status
from simic.audit.limits import Limit
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity

Values = NDArray[np.float64]
MOST_EVIDENCE = 5  # rows shown of a finding
LIVE_SOURCES = ("params", "updates", "steps", "episodes")  # what exists while training runs


@dataclass(frozen=True)
class Outcome:
    """Hold the outcome of a check; without a ``severity`` it is the check's own."""

    status: Status
    measured: str
    severity: Severity | None = None
    evidence: Sequence[Evidence] = ()


@dataclass(frozen=True)
class Reading:
    """Compare a number with its limit; ``severity`` and ``evidence`` are those of the finding."""

    limit: Limit
    value: float
    severity: Severity | None = None  # None: the check's own
    evidence: Sequence[Evidence] = ()

    @property
    def broken(self) -> bool:
        """Tell whether the number lies beyond its limit; NaN does."""
        return self.limit.broken_by(self.value)

    def __str__(self) -> str:
        return f"{self.limit.name} {self.value:.3g} (at {'most' if self.limit.above else 'least'} {self.limit})"


def passed(measured: str) -> Outcome:
    """Make the outcome of a check that found nothing."""
    return Outcome(Status.PASS, measured)


def failed(
    measured: str, severity: Severity | None = None, evidence: Sequence[Evidence] = ()
) -> Outcome:
    """Make the outcome of a finding.

    Args:
        measured: the number with its unit, or what was found.
        severity: of this finding; None: that of the check.
        evidence: rows that show it, the worst or the first of them first.
    """
    return Outcome(Status.FINDING, measured, severity, evidence)


def undecided(reason: str) -> Outcome:
    """Make the outcome of a check that could not be evaluated."""
    return Outcome(Status.NOT_EVALUATED, reason)


def judged(evidence: Sequence[Evidence], measured: str) -> Outcome:
    """Make a finding if there is evidence of one, else a pass."""
    return failed(measured, None, evidence) if evidence else passed(measured)


def weighed(readings: Sequence[Reading]) -> Outcome:
    """Make a finding of the first broken reading (the gravest come first), or a pass."""
    for reading in readings:
        if reading.broken:
            return failed(str(reading), reading.severity, reading.evidence)
    # A number with several limits appears once, with its first limit.
    by_name = {reading.limit.name: reading for reading in reversed(readings)}
    return passed("; ".join(map(str, reversed(by_name.values()))))


Examine = Callable[[RunRecord], Outcome]


@dataclass(frozen=True, kw_only=True)
class Check:
    """Ask one question of one run.

    ``needs`` are inputs such as ``updates.approx_kl`` or ``evaluation``; ``minimum`` is the number of measured rows
    that each column must have. Without them the result is NOT_EVALUATED. Updates that lack a needed number are left
    out, unless ``complete`` is False because a missing number is itself the defect. ``examine`` answers; all needs are
    met then. ``post_hoc`` checks need the whole run; ``layer`` is what they are about. A ``sign`` of bad learning is a
    finding only where returns are bad.
    """

    id: str
    title: str
    question: str
    severity: Severity
    layer: Layer
    needs: tuple[str, ...]
    threshold: str
    source: str
    fix: str
    examine: Examine
    minimum: int = 1
    complete: bool = True
    post_hoc: bool = False
    sign: bool = False
    subject: Literal["any", "growth", "gym"] = "any"  # the task of the runs that it is about

    def run(self, run: RunRecord) -> Result:
        """Answer the question for a run: NOT_EVALUATED where needs are missing."""
        # Without its inputs a check says so, and never passes.
        usable = run.complete(self.needs) if self.complete else run
        missing = usable.missing(self.needs, self.minimum)
        outcome = undecided(missing) if missing else self.examine(usable)
        # A sign alone is no finding.
        if self.sign and outcome.status is Status.FINDING and (good := run.good_returns()):
            outcome = passed(f"{outcome.measured}; no finding, since {good}")
        return Result(
            check=self.id,
            layer=self.layer,
            title=self.title,
            status=outcome.status,
            severity=outcome.severity or self.severity,
            question=self.question,
            measured=outcome.measured,
            threshold=self.threshold,
            source=self.source,
            evidence=tuple(_reported(evidence) for evidence in outcome.evidence[:MOST_EVIDENCE]),
            fix=self.fix,
        )

    @property
    def live(self) -> bool:
        """Tell whether the check can be decided while training runs."""
        return not self.post_hoc and all(need.split(".")[0] in LIVE_SOURCES for need in self.needs)


def _reported(evidence: Evidence) -> Evidence:
    """Write non-finite numbers as words (JSON has none) and count iterations from 1."""
    reported = {
        name: str(value) if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in evidence.items()
    }
    iteration = reported.get("iteration")
    return reported | {"iteration": iteration + 1} if isinstance(iteration, int) else reported


_REGISTRY: dict[str, Check] = {}


def check(**about: Any) -> Callable[[Examine], Examine]:
    """Register a function as the check that these fields of ``Check`` describe."""

    def register(examine: Examine) -> Examine:
        # Twice the same id would hide a check, and with it what it alone finds.
        described = Check(examine=examine, **about)
        if described.id in _REGISTRY:
            raise ValueError(f"check {described.id!r} is registered twice")
        _REGISTRY[described.id] = described
        return examine

    return register


def registered() -> tuple[Check, ...]:
    """List all checks of the imported families, in order of registration."""
    return tuple(_REGISTRY.values())


# --- evidence of several checks --------------------------------------------------------------------------------------


def worst_updates(run: RunRecord, name: str, bad: NDArray[np.bool_]) -> list[Evidence]:
    """List the worst of the bad updates: iteration and value of a metric.

    Args:
        run: has the updates.
        name: of the metric, a column of the updates.
        bad: which updates may be listed, ``[updates]``.
    """
    # NaN counts as infinitely bad, so that a broken number comes first. A stable order gives equal runs equal evidence.
    values = run.updates.column(name)
    iterations = run.updates.column("iteration")
    rows = np.flatnonzero(bad)
    order = np.argsort(-np.abs(np.nan_to_num(values[rows], nan=np.inf)), kind="stable")[
        :MOST_EVIDENCE
    ]
    return [{"iteration": int(iterations[row]), name: float(values[row])} for row in rows[order]]


def first_steps(
    run: RunRecord, bad: NDArray[np.bool_], name: str, values: NDArray[Any]
) -> list[Evidence]:
    """List the first bad steps ``[T, E]``, each with its entry of ``values``, called ``name``.

    Args:
        run: has the steps.
        bad: which steps may be listed.
        name: under which the value of a step is listed.
        values: of all steps, of the shape of ``bad``.
    """
    # The first and not the worst: what follows a first error often comes from it.
    iterations = run.steps.column("iteration")
    steps = run.steps.column("step")
    return [
        {
            "iteration": int(iterations[row]),
            "step": int(steps[row]),
            "env": int(env),
            name: values[row, env].item(),
        }
        for row, env in np.argwhere(bad)[:MOST_EVIDENCE]
    ]


def rows_of_iterations(run: RunRecord) -> list[NDArray[np.intp]]:
    """List the rows of each iteration's steps, in order."""
    # Sorted by both keys: a file that was put together in another order is examined alike.
    iterations = run.steps.column("iteration")
    order = np.lexsort((run.steps.column("step"), iterations))
    return np.split(order, np.flatnonzero(np.diff(iterations[order])) + 1)
