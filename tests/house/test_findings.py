"""docs/history/findings.md answers every finding, once, with tests and checks that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from simic.audit.audit import checks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "history" / "findings.md").read_text(encoding="utf-8")

# Every finding of the five audits (17.1 to 17.5) and of the reading of the code (18). Nothing is ever taken out.
FINDINGS = {
    section: ids.split()
    for section, ids in {
        "17.1": """
            A0-C1 A0-H1 A0-H2 A0-H3 A0-H4 A0-H5 A0-H6 A0-H7 A0-H8 A0-M1 A0-M2 A0-M3 A0-M4 A0-M5 A0-M6 A0-M7 A0-M8 A0-M9
            A0-M10 A0-M11 A0-M12 A0-M13 A0-M14 A0-M15 A0-M16 A0-M17 A0-M18 A0-D1 A0-D2 A0-D3 A0-D4 A0-T1 A0-T2 A0-T3
            A0-T4 A0-P
        """,
        "17.2": """
            S-C1 S-C2 S-C3 S-C4 S-C5 S-C6 S-C7 S-H1 S-H2 S-H3 S-H4 S-H5 S-H6 S-H7 S-H8 S-H9 S-H10 S-H11 S-H12 S-H13
            S-H14 S-M1 S-M2 S-M3 S-M4 S-M5 S-M6 S-M7 S-M8 S-M9 S-M10 S-M11 S-M12 S-M13 S-M14 S-M15 S-M16 S-M17 S-M18
            S-M19 S-M20 S-M21 S-M22 S-M23 S-T1 S-T2 S-T3 S-T4 S-T5 S-T6 S-T7
        """,
        "17.3": """
            P-1.1 P-1.2 P-1.3 P-2.1 P-2.2 P-3.1 P-3.2 P-4.1 P-4.2 P-4.3 P-5.1 P-5.2 P-5.3 P-5.4 P-6.1 P-6.2 P-6.3
        """,
        "17.4": """
            V-1.1 V-1.2 V-1.3 V-2.1 V-2.2 V-2.3 V-3.1 V-3.2 V-3.3 V-4.1 V-4.2 V-4.3 V-4.4 V-4.5 V-5.1 V-5.2 V-5.3 V-5.4
            V-6.1 V-6.2 V-6.3 V-6.4 V-6.5 V-7.1 V-7.2 V-7.3 V-7.4 V-T1 V-T2 V-T3 V-T4 V-T5
        """,
        "17.5": """
            B-ADV-1 B-ADV-2 B-ADV-3 B-PPO-1 B-PPO-2 B-PPO-3 B-PPO-4 B-PPO-5 B-PPO-6 B-PPO-7 B-PPO-8 B-BUF-1 B-BUF-2
            B-BUF-3 B-BUF-4 B-BUF-5 B-TYP-1 B-TYP-2 B-CON-1 B-CON-2 B-INI-1 B-GAP B-X1 B-X2 B-X3 B-X4
        """,
        "18": """
            X-1 X-2 X-3 X-4 X-5 X-6 X-7 X-8 X-9 X-10 X-11 X-12 X-13 X-14 X-15 X-16 X-17 X-19 X-20 X-21 X-22 X-23 X-24
            X-25 X-26 X-28 X-29 X-30 X-31 X-33 X-34 X-35 X-36 X-37 X-40 X-41 X-42 X-43 X-44 X-45 X-46 X-47 X-48 X-49
            X-50 X-51a X-51 X-52 X-53 X-54 X-55 X-56
        """,
    }.items()
}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+(?:::\w+)?)`")
CHECK = re.compile(r"check `(\w+)`")
OPEN = re.compile(r"open: \S.*")


def rows(section: str) -> dict[str, tuple[str, str]]:
    """What must hold and what answers, by id, in the section's table; an id that stands twice is an error."""
    [table] = [part for part in PAGE.split("\n## ") if part.startswith(f"{section} ")]
    found = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][2:]
    ids = [cells[0].strip() for cells in found]
    assert sorted(ids) == sorted(set(ids))
    return {cells[0].strip(): (cells[1].strip(), cells[2].strip()) for cells in found}


@cache
def defined(path: str) -> frozenset[str]:
    """Functions of a file, those of classes as ``Class::function``."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return frozenset(names)


@pytest.mark.parametrize("section", FINDINGS)
def test_the_page_has_every_finding_once_and_no_other(section: str) -> None:
    assert list(rows(section)) == FINDINGS[section]
    assert all(what for what, _ in rows(section).values())


@pytest.mark.parametrize("section", FINDINGS)
def test_every_test_and_check_that_is_named_exists(section: str) -> None:
    known = {check.id for check in checks()}
    for finding, (_, answer) in rows(section).items():
        if OPEN.fullmatch(answer):
            continue
        parts = answer.split("<br>")
        assert parts and answer, finding
        for part in parts:
            test, check = TEST.fullmatch(part), CHECK.fullmatch(part)
            assert test or check, f"{finding}: {part!r} is neither a test nor a check"
            if test:
                assert (ROOT / test[1]).is_file(), f"{finding}: {test[1]}"
                assert test[2] in defined(test[1]), f"{finding}: {test[1]} has no {test[2]}"
                assert test[2].split("::")[-1].startswith("test_"), finding
            if check:
                assert check[1] in known, f"{finding}: there is no check {check[1]}"


def test_all_findings_are_two_hundred_and_fourteen() -> None:
    ids = [finding for section in FINDINGS.values() for finding in section]
    assert len(ids) == len(set(ids)) == 214
    assert len(re.findall(r"^\| [A-Z][\w.-]* \|", PAGE, re.MULTILINE)) == 214


def test_no_finding_is_open() -> None:
    answers = {finding: answer for section in FINDINGS for finding, (_, answer) in rows(section).items()}
    assert {finding: answer for finding, answer in answers.items() if OPEN.fullmatch(answer)} == {}
