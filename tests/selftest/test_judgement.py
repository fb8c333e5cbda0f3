"""What counts as found: a new finding, or a graver one than in any clean run."""

import json
from pathlib import Path
from typing import Literal

import pytest

from simic.selftest.fault import Fault
from simic.selftest.judgement import findings, gravest, judge
from simic.selftest.play import Ending

HIGH = Fault("maths-x", "maths", "Something is wrong.", "high")


@pytest.mark.parametrize(
    ("found", "clean", "word", "by"),
    [
        ({}, {}, "missed", {}),
        ({"A1": "high"}, {"A1": "high"}, "missed", {}),  # a false alarm proves nothing
        ({"A1": "low"}, {"A1": "medium"}, "missed", {}),
        ({"A1": "medium"}, {}, "lower", {"A1": "medium"}),
        ({"A1": "high"}, {"A1": "medium"}, "caught", {"A1": "high"}),
        ({"A1": "low", "B1": "critical"}, {}, "caught", {"B1": "critical", "A1": "low"}),
        ({"A1": "info"}, {}, "lower", {"A1": "info"}),
        ({"Q1": "high"}, {}, "missed", {}),  # the machine was busy
    ],
)
def test_findings_that_a_clean_run_has_do_not_count(found: dict, clean: dict, word: str, by: dict) -> None:
    judged = judge(HIGH, Ending(), found, clean)
    assert (judged.word, list(judged.by.items())) == (word, list(by.items()))


@pytest.mark.parametrize("how", ["refused", "crashed"])
def test_a_run_that_ends_early_is_judged_by_how_it_ended(how: Literal["refused", "crashed"]) -> None:
    judged = judge(HIGH, Ending(how, "train", "why"), {"A1": "critical"}, {})
    assert (judged.word, judged.by, judged.stage, judged.message) == (how, {}, "train", "why")


def test_of_several_reports_each_check_counts_at_its_gravest() -> None:
    reports = [{"A1": "low", "B1": "critical"}, {"A1": "high"}, {"C1": "info"}]
    assert gravest(reports) == {"A1": "high", "B1": "critical", "C1": "info"}


def test_only_findings_are_read_from_a_report(tmp_path: Path) -> None:
    results = [
        {"check": "A1", "severity": "low", "status": "finding"},
        {"check": "A1", "severity": "high", "status": "finding"},
        {"check": "B1", "severity": "critical", "status": "pass"},
        {"check": "C1", "severity": "critical", "status": "not_evaluated"},
    ]
    path = tmp_path / "findings.json"
    path.write_text(json.dumps({"results": results}))
    assert findings(path) == {"A1": "high"}
