"""The judgement of a fault by the findings that clean runs do not have."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simic.telemetry.rows import SEVERITIES
from tests.faults.fault import Fault
from tests.faults.play import Ending

Fate = Literal["caught", "lower", "refused", "crashed", "missed"]
Severities = Mapping[str, str]  # of the findings of a report, by id of the check


@dataclass(frozen=True)
class Judgement:
    """Hold the outcome; ``by`` has the new findings, gravest first; ``message`` is of a refusal or a crash."""

    word: Fate
    by: dict[str, str]
    stage: str = ""
    message: str = ""


def findings(path: Path) -> dict[str, str]:
    """Return the severity of every finding of a findings.json by check, the gravest of several."""
    results = json.loads(path.read_bytes())["results"]
    return gravest([{each["check"]: each["severity"]} for each in results if each["status"] == "finding"])


def gravest(reports: Iterable[Severities]) -> dict[str, str]:
    """Return the gravest severity of each check over all reports."""
    found: dict[str, str] = {}
    for report in reports:
        for check, severity in report.items():
            if _rank(severity) > _rank(found.get(check, "")):
                found[check] = severity
    return found


def judge(fault: Fault, ending: Ending, found: Severities, clean: Severities) -> Judgement:
    """Judge a fault; a finding counts where no clean run has one of the same check as grave."""
    if ending.how != "ended":
        return Judgement(ending.how, {}, ending.stage, ending.message)
    new = {check: severity for check, severity in found.items() if _rank(severity) > _rank(clean.get(check, ""))}
    by = dict(sorted(new.items(), key=lambda each: -_rank(each[1])))
    if not by:
        return Judgement("missed", {})
    worst = next(iter(by.values()))
    return Judgement("caught" if _rank(worst) >= _rank(fault.severity) else "lower", by)


def _rank(severity: str) -> int:
    """Rank a severity; 0 without a finding, "info" below "low"."""
    return 0 if not severity else 1 if severity == "info" else 2 + SEVERITIES.index(severity)  # pyright: ignore[reportArgumentType]
