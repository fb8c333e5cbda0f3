"""tests/house/findings.md answers every finding, once, with tests and checks that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from simic.audit.audit import checks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests" / "house" / "findings.md").read_text(encoding="utf-8")

# Findings of the five audits (17.1 to 17.5) and of the reading of the code (18), by section. None is ever taken out.
FINDINGS = {"17.1": 36, "17.2": 51, "17.3": 17, "17.4": 32, "17.5": 26, "18": 52}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
CHECK = re.compile(r"check `(\w+)`")


def rows(section: str) -> dict[str, tuple[str, str]]:
    """Return what must hold and what answers, by id, in the section's table; an id that stands twice is an error."""
    [table] = [part for part in PAGE.split("\n## ") if part.startswith(f"{section} ")]
    lines_of_table = [
        line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")
    ][2:]
    ids = [cells[0].strip() for cells in lines_of_table]
    assert sorted(ids) == sorted(set(ids))
    return {cells[0].strip(): (cells[1].strip(), cells[2].strip()) for cells in lines_of_table}


@cache
def defined(path: str) -> frozenset[str]:
    """Return the functions of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("section", FINDINGS)
def test_every_test_and_check_that_is_named_exists(section: str) -> None:
    """Of each finding, none of which is missing, stands twice or is open."""
    check_ids = {check.id for check in checks()}
    assert len(rows(section)) == FINDINGS[section]
    for finding, (requirement, answer) in rows(section).items():
        assert requirement, finding
        for part in answer.split("<br>"):
            test = TEST.fullmatch(part)
            check = CHECK.fullmatch(part)
            assert test or check, f"{finding}: {part!r} is neither a test nor a check"
            if test:
                assert (ROOT / test[1]).is_file(), f"{finding}: {test[1]}"
                assert test[2] in defined(test[1]), f"{finding}: {test[1]} has no {test[2]}"
            if check:
                assert check[1] in check_ids, f"{finding}: there is no check {check[1]}"
