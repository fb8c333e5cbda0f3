"""findings.sarif: valid by the schema, and says what findings.json says."""

import json
from pathlib import Path

import jsonschema

from simic.audit.audit import examine
from simic.audit.findings import Status
from simic.audit.sarif import LEVELS, PLACE, to_sarif

from .defects import DEFECTS

# OASIS, https://docs.oasis-open.org/sarif/sarif/v2.1.0/; as @microsoft/sarif-multitool 5.7.0 (MIT) hands it out.
SCHEMA = json.loads((Path(__file__).parent / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())


def test_every_finding_is_a_result_at_its_level_worst_first_and_every_check_a_rule(plant):
    """Findings of two severities; what was not evaluated is a note."""
    (_, low), (_, critical) = DEFECTS["E1"][3], DEFECTS["P5"][0]
    verdict = examine(low(critical(plant)).without("certificate"), "run-1")
    log = json.loads(to_sarif(verdict))
    VALIDATOR.validate(log)
    (run,) = log["runs"]
    findings = [finding.check for finding in verdict.findings]
    assert [found["ruleId"] for found in run["results"]] == findings == ["P5", "E1"]
    assert [found["level"] for found in run["results"]] == [LEVELS[f.severity] for f in verdict.findings]
    for found, finding in zip(run["results"], verdict.findings, strict=True):
        assert finding.measured in found["message"]["text"]
        assert found["properties"]["evidence"] == [dict(row) for row in finding.evidence]
        assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == PLACE
        assert found["partialFingerprints"] == {"check/v1": found["ruleId"]}
    assert run["automationDetails"]["id"] == "simic audit/run-1"
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == [result.check for result in verdict.results]
    notes = [note["associatedRule"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert {note["id"] for note in notes} == {result.check for result in verdict.with_status(Status.NOT_EVALUATED)}
