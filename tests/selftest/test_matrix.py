"""The words and sums of the matrix."""

import json

import pytest

from simic.audit import known
from simic.errors import SimicError
from simic.selftest import matrix
from simic.selftest.catalogue import BY_ID
from simic.selftest.fault import Fault, Severity
from simic.selftest.judgement import Judgement
from simic.selftest.runner import Tried

CODE = {"agent": "1"}


def tried(name: str, severity: Severity, judgement: Judgement, own: bool = False) -> Tried:
    family = "maths" if name.startswith("maths") else "data"
    return Tried(Fault(name, family, f"{name}.", severity, own=own), judgement, 12.34, changed=name != "data-b")


SOME = [
    tried("maths-b", "high", Judgement("caught", {"K1": "critical", "R2": "low"}), own=True),
    tried("data-a", "critical", Judgement("refused", {}, "evaluate", "no such file; run simic train first")),
    tried("maths-a", "medium", Judgement("crashed", {}, "train", "Traceback\n  line\nValueError: bad")),
    tried("data-b", "medium", Judgement("missed", {}), own=True),
]


def test_a_line_says_the_fault_what_found_it_and_how_grave_it_was_taken() -> None:
    lines = [" ".join(matrix.line(one).split()) for one in SOME]
    assert lines == [
        "maths-b high caught K1 critical, R2 low 12 s",
        "data-a critical refused evaluate no such file; run simic train first 12 s",
        "maths-a medium crashed train ValueError: bad 12 s",
        "data-b medium missed (no file is changed) 12 s",
    ]


def test_sums_are_by_family_and_of_those_without_a_list() -> None:
    found = json.loads(matrix.to_json(CODE, {}, SOME))["summary"]
    layers = {"bind": 0, "recompute": 0, "certify": 0, "canary": 0, "symptom": 0}
    none = {"faults": 0, "caught": 0, "lower": 0, "refused": 0, "crashed": 0, "missed": 0, "layers": layers}
    assert found["maths"] == none | {"faults": 2, "caught": 1, "crashed": 1, "layers": layers | {"certify": 1}}
    assert found["data"] == none | {"faults": 2, "refused": 1, "missed": 1}
    assert found["all"]["faults"] == 4 and found["resume"] == none
    assert found["own"] == none | {"faults": 2, "caught": 1, "missed": 1, "layers": layers | {"certify": 1}}


def test_the_table_begins_with_the_false_alarms_and_ends_with_the_sums() -> None:
    lines = matrix.table(CODE, {1: {"A1": "low"}, 2: {"A1": "medium"}}, SOME).splitlines()
    assert lines[0] == "no fault, 2 runs: A1 medium"
    words = "family faults bind recompute certify canary symptom lower refused crashed missed"
    head = [line.split() for line in lines].index(words.split())
    found = {name: [int(number) for number in numbers] for name, *numbers in map(str.split, lines[head + 1 :])}
    assert found["all"] == [4, 0, 0, 1, 0, 0, 0, 1, 1, 1] and found["own"] == [2, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert matrix.table(CODE, {1: {}}, []).startswith("no fault, 1 runs: none")


def test_the_json_has_faults_by_family_and_id_and_the_code() -> None:
    found = json.loads(matrix.to_json(CODE, {1: {"K1": "low"}}, SOME))
    assert [each["id"] for each in found["faults"]] == ["maths-a", "maths-b", "data-a", "data-b"]
    assert found["clean"] == {"1": {"K1": "low"}} and found["code"] == CODE
    assert found["faults"][1]["by"] == {"K1": "critical", "R2": "low"} and found["faults"][1]["result"] == "caught"
    assert found["faults"][1]["layer"] == "certify" and found["faults"][1]["seconds"] == 12.34
    assert found["faults"][0]["message"] == "ValueError: bad"


def test_only_all_faults_of_the_code_as_it_is_are_shipped() -> None:
    everything = [Tried(fault, Judgement("missed", {}), 0.0) for fault in BY_ID.values()]
    whole = matrix.result(known.code(), {1: {}}, everything)
    assert matrix.shippable(whole) is whole
    with pytest.raises(SimicError, match=r"^--ship: 2 faults were not tried; the report needs all"):
        matrix.shippable(matrix.result(known.code(), {1: {}}, everything[2:]))
    with pytest.raises(SimicError, match=r"^--ship: agent changed while the faults were tried; run it again"):
        matrix.shippable(matrix.result(known.code() | {"agent": "1"}, {1: {}}, everything))
