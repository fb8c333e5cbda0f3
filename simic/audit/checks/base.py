"""What a check is, and how it is run: inputs first, then the question, never a pass without both."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from simic.audit.findings import Evidence, Result, Status
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity

Values = NDArray[np.float64]
OURS = "ours, uncalibrated"
ENOUGH_ROWS = 32  # what is measured of a head on fewer rows is noise
LIVE_SOURCES = ("params", "updates", "steps")  # what exists while training runs


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


def undecided(reason: str) -> Outcome:
    """There is not enough to answer."""
    return Outcome(Status.NOT_EVALUATED, reason)


class Check(ABC):
    """One question to one run.

    ``needs`` are inputs such as ``updates.approx_kl`` or ``evaluation``; ``minimum`` is how many measured rows each
    column must have. Below either the result is NOT_EVALUATED. Updates that lack a needed number are left out, unless
    ``complete`` is False because a missing number is itself the defect. ``post_hoc`` checks want the whole run.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    severity: ClassVar[Severity]
    question: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    minimum: ClassVar[int] = 1
    complete: ClassVar[bool] = True
    post_hoc: ClassVar[bool] = False
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
            title=self.title,
            status=outcome.status,
            severity=outcome.severity or self.severity,
            question=self.question,
            measured=outcome.measured,
            threshold=self.threshold,
            source=self.source,
            evidence=outcome.evidence,
            fix=self.fix,
            passes_when=self.passes_when,
        )

    @property
    def live(self) -> bool:
        """Whether it can be decided while training runs."""
        return not self.post_hoc and all(need.split(".")[0] in LIVE_SOURCES for need in self.needs)


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


# --- what several checks compute -------------------------------------------------------------------------------------


def where(run: RunRecord, name: str, bad: NDArray[np.bool_], most: int = 5) -> tuple[Evidence, ...]:
    """The worst rows of an update metric: iteration and value, at most ``most``."""
    values, iterations = run.updates.column(name), run.updates.column("iteration")
    rows = np.flatnonzero(bad)
    order = rows[np.argsort(-np.abs(np.nan_to_num(values[rows], nan=np.inf)), kind="stable")][:most]
    return tuple({"iteration": int(iterations[i]), name: _plain(float(values[i]))} for i in order)


def _plain(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)


def spearman(x: Values, y: Values) -> tuple[float, float]:
    """Rank correlation and its two-sided p; 0 and 1 where one of the two is constant."""
    if np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return 0.0, 1.0
    statistic, p_value = np.asarray(stats.spearmanr(x, y))
    return float(statistic), float(p_value)


def rolling_median(values: Values, width: int) -> Values:
    """Median of each window of ``width`` consecutive values; a spike shorter than half a window does not show."""
    return np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)


def longest_run(bad: NDArray[np.bool_]) -> int:
    """Length of the longest stretch of True."""
    longest = current = 0
    for flag in bad.tolist():
        current = current + 1 if flag else 0
        longest = max(longest, current)
    return longest


def ema_before(values: Values, decay: float = 0.9) -> Values:
    """Exponential moving average of the values before each one; NaN at the first."""
    result = np.full_like(values, np.nan)
    for i in range(1, len(values)):
        result[i] = values[0] if i == 1 else decay * result[i - 1] + (1 - decay) * values[i - 1]
    return result
