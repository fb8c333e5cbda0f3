"""Results of checks (PASS, FINDING, or NOT_EVALUATED, which is never a pass), and findings.json."""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from simic import durable
from simic.errors import SimicError
from simic.evaluation.result import Frozen
from simic.telemetry.rows import SEVERITIES, Severity

SCHEMA_VERSION = 5
Evidence = Mapping[str, float | int | str]
# In the order of proof: hashes, recomputation; then symptoms.
Layer = Literal["bind", "recompute", "symptom"]
PROOF: tuple[Layer, ...] = ("bind", "recompute")


class Status(StrEnum):
    """Name the three outcomes."""

    PASS = "pass"
    FINDING = "finding"
    NOT_EVALUATED = "not_evaluated"


class Statistic(Frozen):
    """Hold a number beside its limit; ``above``: larger is worse; a value of None is not finite."""

    name: str
    value: float | None
    limit: float
    above: bool
    ours: bool  # no publication has the limit


class Result(Frozen):
    """Hold the result of one check. ``severity`` is that of the finding, else the worst it could have been."""

    check: str
    layer: Layer
    title: str
    status: Status
    severity: Severity
    question: str
    measured: str  # the number with its unit, or why there is none
    statistics: tuple[Statistic, ...]
    threshold: str
    source: str
    evidence: tuple[Evidence, ...]
    fix: str


class Verdict(Frozen):
    """Hold the content of findings.json."""

    schema_version: Literal[5] = SCHEMA_VERSION
    run: str  # its name
    results: tuple[Result, ...]
    summary: tuple[str, ...] = ()  # five lines

    def with_status(self, status: Status) -> tuple[Result, ...]:
        """Return the results of one status, worst first, then by id."""
        chosen = [result for result in self.results if result.status is status]
        return tuple(sorted(chosen, key=lambda result: (-SEVERITIES.index(result.severity), result.check)))

    @property
    def findings(self) -> tuple[Result, ...]:
        """Return the findings, worst first."""
        return self.with_status(Status.FINDING)

    @property
    def refuted(self) -> tuple[str, ...]:
        """Return findings of the proof layers; with any the record does not hold and nothing may be claimed from it."""
        return tuple(result.check for result in self.findings if result.layer in PROOF)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Return checks that were not evaluated and could have been critical."""
        return tuple(r.check for r in self.with_status(Status.NOT_EVALUATED) if r.severity == "critical")

    def counts(self) -> dict[Severity, int]:
        """Count findings by severity, the worst first."""
        return {s: sum(f.severity == s for f in self.findings) for s in reversed(SEVERITIES)}

    def metrics(self) -> str:
        """Return flat JSON: findings by severity, and checks not evaluated."""
        counted = {**self.counts(), "not_evaluated": len(self.with_status(Status.NOT_EVALUATED))}
        return json.dumps(counted, indent=2) + "\n"

    def to_json(self) -> str:
        """Return canonical JSON with a checksum."""
        content = json.loads(json.dumps(self.model_dump(mode="json"), sort_keys=True))
        return durable.with_checksum(content).decode()

    @classmethod
    def from_json(cls, written: bytes) -> Self:
        """Read what ``to_json`` wrote; ValueError for anything else."""
        return cls.model_validate_json(json.dumps(durable.checked(written)))


def read_verdict(reports: Path) -> Verdict:
    """Read the findings.json of a folder of reports; SimicError where there is none of this version."""
    file = reports / "findings.json"
    if not file.is_file():
        raise SimicError(f"{file}: no such file; run simic audit first")
    try:
        return Verdict.from_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise SimicError(
            f"{file}: not findings of this version of simic: {str(error).splitlines()[0]}; run simic audit again"
        ) from None


def failing(results: Iterable[Result], fail_on: Literal["never", "critical", "high", "medium"]) -> tuple[Result, ...]:
    """Return the findings for which a run with this ``audit.fail_on`` fails."""
    if fail_on == "never":
        return ()
    limit = SEVERITIES.index(fail_on)
    return tuple(r for r in results if r.status is Status.FINDING and SEVERITIES.index(r.severity) >= limit)


def number(value: float) -> str:
    """Format a number briefly: 0.05, 10, 1e-8."""
    return f"{value:g}".replace("e-0", "e-")


def percent(share: float) -> str:
    """Format a share: ``0.25`` → ``25 %``."""
    return f"{100 * share:g} %"
