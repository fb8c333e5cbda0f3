"""What the report says of the self-test is what the file says, and the file is about the faults there are."""

import json
import re
from collections import Counter
from typing import get_args

import pytest

from simic import seals
from simic.audit import known, report
from simic.audit.audit import checks, examine
from simic.audit.findings import Layer
from simic.audit.known import PlantedFault, SelfTest
from simic.errors import SimicError
from simic.selftest import setting
from simic.selftest.catalogue import BY_ID

from .pages import Page

LAYERS = get_args(Layer)
TREE = json.loads(known.FILE.read_bytes())
FAULTS = TREE["faults"]
CLI = {"__init__.py", "__main__.py", "cli.py", "study", "published"}  # no part of a run
ENDED = {"refused": "stopped the run", "missed": "missed"}


def test_the_file_is_of_the_faults_that_there_are() -> None:
    """In the order of the catalogue's families, with its words and severities; every check is one of the audit."""
    assert {fault["id"] for fault in FAULTS} == BY_ID.keys() and len(FAULTS) == len(BY_ID)
    for fault in FAULTS:
        of = BY_ID[fault["id"]]
        assert (fault["family"], fault["title"], fault["severity"]) == (of.family, of.title, of.severity)
    found_by = {check for fault in FAULTS for check in fault["by"]}
    assert found_by <= {check.id for check in checks()}


def test_a_fault_is_of_the_first_layer_that_took_it_as_gravely_as_it_is() -> None:
    layers: dict[str, Layer] = {check.id: check.layer for check in checks()}
    for fault in FAULTS:
        assert fault["layer"] == known.first_layer(fault["severity"], fault["by"], layers)
        assert (fault["layer"] is not None) == (fault["result"] == "caught")
    assert known.first_layer("high", {"R2": "critical", "K1": "high", "X6": "medium"}, layers) == "certify"
    assert known.first_layer("critical", {"K1": "high"}, layers) is None


def section(page: str) -> str:
    start = page.index('<section aria-labelledby="known">')
    return page[start : page.index("</section>", start)]


def sums_shown(text: str) -> dict[str, list[int]]:
    """Of the first table: numbers by the first cell of a row."""
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", body)]
    return {name: [0 if cell == "–" else int(cell) for cell in cells] for name, *cells in rows}


def counted(faults: list[dict[str, object]]) -> list[int]:
    layers, ended = Counter(each["layer"] for each in faults), Counter(each["result"] for each in faults)
    return [len(faults), *(layers[name] for name in LAYERS), *(ended[word] for word in ENDED)]


def test_the_numbers_in_the_report_are_those_of_the_file(clean) -> None:
    expected = {name: counted([each for each in FAULTS if each["family"] == name]) for name in known.FAMILIES}
    expected["all"] = counted(FAULTS)
    verdict = examine(clean, "x")
    text = section(report.html(clean, verdict, ()))
    assert sums_shown(text) == expected
    for row in expected.values():  # every fault is counted once
        assert row[0] == sum(row[1:])
    markdown = report.markdown(clean, verdict)
    for name, row in expected.items():
        assert f"| {name} | {' | '.join(str(number or '–') for number in row)} |" in markdown
    total = dict(zip(("planted", *LAYERS, *ENDED), expected["all"], strict=True))
    said = f"Of {total['planted']} faults planted in simic on purpose, one at a time, the audit found "
    assert said + f"{sum(total[name] for name in LAYERS)}; {total['refused']} stopped the run; " in text
    assert said.replace("-", "\\-") in markdown or said in markdown


def test_every_fault_is_in_the_report_with_what_became_of_it(clean) -> None:
    parsed = Page(report.html(clean, examine(clean, "x"), ()))
    text = re.sub(r"\s+", " ", " ".join(parsed.sections["known"]))
    for fault in known.shipped().faults:
        assert re.sub(r"\s+", " ", f"{fault.title} {fault.severity} {fault.id} {known.fate(fault)}") in text
    missed = [fault["title"] for fault in FAULTS if fault["result"] == "missed"]
    for title in missed:
        assert text.index(title) < text.index("All planted faults"), "what is missed is not folded away"


def fault(name: str, **changes: object) -> PlantedFault:
    return PlantedFault.model_validate(
        {
            "id": name, "family": "data", "title": f"{name}.", "severity": "high", "result": "caught", "changed": True,
            "layer": "bind", "by": {"X6": "critical", "R2": "low"}, "stage": "", "message": "", **changes,
        }
    )  # fmt: skip


SOME = SelfTest(
    code=known.code(),
    clean=({"F1": "low", "X2": "low"}, {"F1": "medium"}),
    faults=(
        fault("a"),
        fault("b", result="lower", layer=None, by={"R2": "medium"}, changed=False),
        fault("c", result="crashed", layer=None, by={}, stage="train", message="ValueError: bad"),
        fault("d", result="missed", layer=None, by={}),
    ),
)


def test_how_a_fault_ended_is_said_in_words() -> None:
    assert [known.fate(each) for each in SOME.faults] == [
        "caught by X6 critical, R2 low",
        "lower by R2 medium (it changed no file)",
        "crashed in train: ValueError: bad",
        "missed",
    ]
    assert known.sentences(SOME)[0].endswith(
        "the audit found 1; 1 found but taken too lightly; 1 crashed the run; 1 was missed."
    )


def test_what_runs_without_a_fault_were_found_to_have_is_said_gravest_first() -> None:
    assert known.sentences(SOME)[2].endswith("In 2 of those the audit found F1 (medium), X2 (low).")
    assert known.sentences(SOME.model_copy(update={"clean": ({},)}))[2].endswith("the audit found nothing.")


def test_the_canary_took_no_part_as_the_report_says() -> None:
    assert setting.TREE["audit"]["canary"] is False and "without the canary" in known.sentences(SOME)[2]


def test_other_code_than_was_tested_is_named_and_the_same_is_said_to_be_the_same(clean, monkeypatch) -> None:
    monkeypatch.setattr(known, "shipped", lambda: SOME)
    same = section(report.html(clean, examine(clean, "x"), ()))
    assert "Measured on the code that made this report." in same
    other = SOME.model_copy(update={"code": {**SOME.code, "growth": "0", "gone.py": "0"}})
    monkeypatch.setattr(known, "shipped", lambda: other)
    warning = "Measured on other code than made this report; changed since: gone.py, growth."
    assert warning in section(report.html(clean, examine(clean, "x"), ()))
    assert warning.replace("_", "\\_") in report.markdown(clean, examine(clean, "x"))


def test_all_code_of_a_run_is_compared() -> None:
    parts = {path.name for path in seals.PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert parts - {"__pycache__"} - CLI == set(known.CODE)
    assert all(known.code().values())


def test_a_result_that_cannot_be_read_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(known, "FILE", tmp_path / "self_test.json")
    (tmp_path / "self_test.json").write_text("{}")
    with pytest.raises(SimicError, match=r"self_test.json: not a result of the self-test: .*; install simic again"):
        known.shipped.__wrapped__()


def test_a_result_is_the_same_after_it_was_written_and_read() -> None:
    assert SelfTest.model_validate_json(SOME.to_json()) == SOME
    assert len(SOME.to_json().splitlines()) == len(SOME.faults) + 2
