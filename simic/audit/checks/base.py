"""What a check is, and how it is run: inputs first, then the question, never a pass without both."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simic.audit.findings import Evidence, Layer, Result, Status
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity

LIVE_SOURCES = ("params", "updates", "steps")  # what exists while training runs

TEXTS = ("title", "question", "threshold", "source", "fix", "passes_when")


@dataclass(frozen=True)
class Outcome:
    """What examining a run gave; ``severity`` None means the check's own."""

    status: Status
    measured: str
    severity: Severity | None = None
    evidence: tuple[Evidence, ...] = ()


def passed(measured: str) -> Outcome:
    """The answer is yes, and this is the number."""
    return Outcome(Status.PASS, measured)


def found(measured: str, severity: Severity | None = None, evidence: tuple[Evidence, ...] = ()) -> Outcome:
    """The answer is no, and this is where to look."""
    return Outcome(Status.FINDING, measured, severity, evidence)


def judged(bad: bool | np.bool_ | NDArray[np.bool_], measured: str, evidence: tuple[Evidence, ...] = ()) -> Outcome:
    """A finding of the check's own severity if anything is bad, else a pass."""
    return found(measured, None, evidence) if np.any(bad) else passed(measured)


def undecided(reason: str) -> Outcome:
    """There is not enough to answer."""
    return Outcome(Status.NOT_EVALUATED, reason)


class Check(ABC):
    """One question to one run.

    ``needs`` are inputs such as ``updates.approx_kl`` or ``evaluation``; ``minimum`` is how many measured rows each
    column must have. Below either the result is NOT_EVALUATED. Updates that lack a needed number are left out, unless
    ``complete`` is False because a missing number is itself the defect. ``post_hoc`` checks want the whole run;
    ``layer`` is the kind of proof.
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
    threshold: ClassVar[str]
    source: ClassVar[str]
    fix: ClassVar[str]
    passes_when: ClassVar[str]

    @abstractmethod
    def examine(self, run: RunRecord) -> Outcome:
        """Answer the question; all needs are there."""

    def run(self, run: RunRecord) -> Result:
        """The result on a run, whatever is missing."""
        run = run.complete(self.needs) if self.complete else run
        missing = run.missing(self.needs, self.minimum)
        outcome = undecided(missing) if missing else self.examine(run)
        return Result(
            check=self.id,
            layer=self.layer,
            status=outcome.status,
            severity=outcome.severity or self.severity,
            measured=outcome.measured,
            evidence=tuple(_shown(each) for each in outcome.evidence),
            **{text: getattr(self, text) for text in TEXTS},
        )

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
