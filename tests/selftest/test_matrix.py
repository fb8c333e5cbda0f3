"""The words and sums of the matrix."""

import json

from simic.selftest import matrix
from simic.selftest.fault import Fault, Severity
from simic.selftest.judgement import Judgement
from simic.selftest.runner import Tried


def tried(name: str, severity: Severity, judgement: Judgement, own: bool = False) -> Tried:
    family = "maths" if name.startswith("maths") else "data"
    return Tried(Fault(name, family, f"{name}.", severity, own=own), judgement, 12.34, changed=name != "data-b")


SOME = [
    tried("maths-b", "high", Judgement("caught", {"X1": "critical", "A1": "low"}), own=True),
    tried("data-a", "critical", Judgement("refused", {}, "evaluate", "no such file; run simic train first")),
    tried("maths-a", "medium", Judgement("crashed", {}, "train", "Traceback\n  line\nValueError: bad")),
    tried("data-b", "medium", Judgement("missed", {}), own=True),
]


def test_a_line_says_the_fault_what_found_it_and_how_grave_it_was_taken() -> None:
    lines = [" ".join(matrix.line(one).split()) for one in SOME]
    assert lines == [
        "maths-b high caught X1 critical, A1 low 12 s",
        "data-a critical refused evaluate no such file; run simic train first 12 s",
        "maths-a medium crashed train ValueError: bad 12 s",
        "data-b medium missed (no file is changed) 12 s",
    ]


def test_sums_are_by_family_and_of_those_without_a_list() -> None:
    found = matrix.summary(SOME)
    assert found["maths"] == {"faults": 2, "caught": 1, "lower": 0, "refused": 0, "crashed": 1, "missed": 0}
    assert found["data"] == {"faults": 2, "caught": 0, "lower": 0, "refused": 1, "crashed": 0, "missed": 1}
    assert found["all"]["faults"] == 4 and found["resume"]["faults"] == 0
    assert found["own"] == {"faults": 2, "caught": 1, "lower": 0, "refused": 0, "crashed": 0, "missed": 1}


def test_the_table_begins_with_the_false_alarms() -> None:
    first, *_, last = matrix.table({1: {"A1": "low"}, 2: {"A1": "medium"}}, SOME).splitlines()
    assert first == "no fault, 2 runs: A1 medium"
    assert last == "own           2 faults: 1 caught, 0 lower, 0 refused, 0 crashed, 1 missed"
    assert matrix.table({1: {}}, []).startswith("no fault, 1 runs: none")


def test_the_json_has_faults_by_family_and_id() -> None:
    found = json.loads(matrix.to_json({1: {"A1": "low"}}, SOME))
    assert [each["id"] for each in found["faults"]] == ["maths-a", "maths-b", "data-a", "data-b"]
    assert found["clean"] == {"1": {"A1": "low"}}
    assert found["faults"][1]["by"] == {"X1": "critical", "A1": "low"} and found["faults"][1]["result"] == "caught"
    assert found["faults"][0]["message"] == "ValueError: bad"
