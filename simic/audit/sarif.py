"""findings.sarif: the findings as SARIF 2.1.0, which code hosts and editors show.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import json
from typing import Any

import simic
from simic.audit.findings import Result, Status, Verdict
from simic.telemetry.rows import Severity

LEVELS: dict[Severity, str] = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "note"}
PLACE = "params.yaml"  # SARIF wants a file of the repository; this one identifies the run


def to_sarif(verdict: Verdict) -> str:
    """Return SARIF with every check as a rule, findings as results, and unevaluated checks as notifications."""
    rules = [_rule(result) for result in verdict.results]
    notes = [_notification(result) for result in verdict.with_status(Status.NOT_EVALUATED)]
    run = {
        "tool": {"driver": {"name": "simic audit", "semanticVersion": simic.__version__, "rules": rules}},
        # Code hosts compare runs by the part before the last slash.
        "automationDetails": {"id": f"simic audit/{verdict.run}"},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "results": [_result(finding) for finding in verdict.findings],
        "properties": {"certified": verdict.certified, "refuted": list(verdict.refuted)},
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


def _rule(result: Result) -> dict[str, Any]:
    return {
        "id": result.check,
        "shortDescription": {"text": result.title},
        "fullDescription": {"text": result.question},
        "help": {"text": result.fix},
        "defaultConfiguration": {"level": LEVELS[result.severity]},
        "properties": {"layer": result.layer, "finding_when": result.threshold, "source": result.source},
    }


def _result(finding: Result) -> dict[str, Any]:
    return {
        "ruleId": finding.check,
        "level": LEVELS[finding.severity],
        "message": {"text": f"{finding.title}: {finding.measured}. Finding when: {finding.threshold}."},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": PLACE}}}],
        "partialFingerprints": {"check/v1": finding.check},
        "properties": {"severity": finding.severity, "evidence": [dict(row) for row in finding.evidence]},
    }


def _notification(result: Result) -> dict[str, Any]:
    text = f"Not evaluated: {result.measured}."
    return {"level": "note", "message": {"text": text}, "associatedRule": {"id": result.check}}
