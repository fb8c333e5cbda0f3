"""Results of checks, the verdict of an audit in four lines, and findings.json."""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from simic import durable
from simic.errors import SimicError
from simic.evaluation.result import Frozen
from simic.telemetry.rows import SEVERITIES, Severity

FILE = "findings.json"
Evidence = Mapping[str, float | int | str]
# What a check is about: whether the record holds, whether a replay gives the same bytes, whether the agent learned.
Layer = Literal["record", "replay", "learning"]
Part = Literal["training", "evaluation"]  # of a run that is replayed


class Status(StrEnum):
    """Name the three outcomes of a check; NOT_EVALUATED is never a pass."""

    PASS = "pass"
    FINDING = "finding"
    NOT_EVALUATED = "not_evaluated"


class Result(Frozen):
    """Hold the result of one check. ``severity`` is that of the finding, else the worst it could have been."""

    check: str
    layer: Layer
    title: str
    status: Status
    severity: Severity
    question: str
    measured: str  # the number with its unit, or why there is none
    threshold: str
    source: str
    evidence: tuple[Evidence, ...]
    fix: str


class Summary(Frozen):
    """Hold the four lines of a verdict, each a sentence."""

    what: str  # the result with its interval; before it the code that was changed, if any
    record: str
    replay: str
    learning: str

    @property
    def lines(self) -> dict[str, str]:
        """Give the sentences by the name of their line."""
        return dict(self)


class ReplayResult(Frozen):
    """Say how the replay of one part ended, and what was compared, what differs, or why it was not possible."""

    part: Part
    outcome: Literal["equal", "differs", "not possible"]
    detail: str
    differences: tuple[str, ...] = ()


class Verdict(Frozen):
    """Hold the content of findings.json."""

    schema_version: Literal[6] = 6
    run: str  # its name
    summary: Summary
    results: tuple[Result, ...]

    def with_status(self, status: Status) -> tuple[Result, ...]:
        """Choose the results of one status, worst first, then by id."""
        # The id breaks ties, so that the order does not depend on the order of registration.
        chosen = [result for result in self.results if result.status is status]
        return tuple(
            sorted(chosen, key=lambda result: (-SEVERITIES.index(result.severity), result.check))
        )

    @property
    def findings(self) -> tuple[Result, ...]:
        """List the findings, worst first."""
        return self.with_status(Status.FINDING)

    def of_layer(self, layer: Layer) -> tuple[Result, ...]:
        """List the results of one layer."""
        return tuple(result for result in self.results if result.layer == layer)

    @property
    def unsound(self) -> tuple[str, ...]:
        """List the checks by which the record does not hold or a replay differs: nothing may be claimed then."""
        return tuple(finding.check for finding in self.findings if finding.layer != "learning")

    def counts(self) -> dict[Severity, int]:
        """Count findings by severity, the worst first."""
        severities = [finding.severity for finding in self.findings]
        return {severity: severities.count(severity) for severity in reversed(SEVERITIES)}

    def metrics(self) -> str:
        """Write flat JSON: findings by severity, checks not evaluated, whether the record is proven, replays equal."""
        # All severities are listed, with 0 too: a metric that comes and goes could not be followed from run to run.
        replays = [result.status for result in self.of_layer("replay")]
        numbers = {
            **self.counts(),
            "not_evaluated": len(self.with_status(Status.NOT_EVALUATED)),
            # Sound means proven: one check without its inputs is enough to make it 0.
            "record_sound": int(
                all(result.status is Status.PASS for result in self.of_layer("record"))
            ),
            "replays_equal": replays.count(Status.PASS),
        }
        return json.dumps(numbers, indent=2) + "\n"

    def to_json(self) -> str:
        """Write canonical JSON with a checksum."""
        # Keys are sorted before the checksum is taken, so that it is one of content and not of an order.
        content = json.loads(json.dumps(self.model_dump(mode="json"), sort_keys=True))
        return durable.with_checksum(content).decode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read what ``to_json`` wrote; ValueError for anything else."""
        return cls.model_validate_json(json.dumps(durable.checked(text)))


def read_verdict(reports: Path) -> Verdict:
    """Read the findings.json of a folder of reports; SimicError where there is none of this version."""
    file = reports / FILE
    if not file.is_file():
        raise SimicError(f"{file}: no such file; run simic audit first")
    try:
        return Verdict.from_json(file.read_bytes())
    # The schema version is part of the model: a file of another version is refused here, and never half understood.
    except (OSError, ValueError) as error:
        raise SimicError(
            f"{file}: not findings of this version of simic: {str(error).splitlines()[0]}; run simic audit again"
        ) from None


def failing(
    results: Iterable[Result], fail_on: Literal["never", "critical", "high", "medium"]
) -> tuple[Result, ...]:
    """List the findings for which a run with this ``audit.fail_on`` fails."""
    if fail_on == "never":
        return ()
    # Severities are listed from the mildest to the gravest.
    limit = SEVERITIES.index(fail_on)
    return tuple(
        result
        for result in results
        if result.status is Status.FINDING and SEVERITIES.index(result.severity) >= limit
    )


def number(value: float) -> str:
    """Format a number briefly: 0.05, 10, 1e-8."""
    return f"{value:g}".replace("e-0", "e-")


def percent(share: float) -> str:
    """Format a share: ``0.25`` → ``25 %``."""
    return f"{100 * share:g} %"
