"""A mutant that the tests notice and one that they do not are told apart."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import mutants

MODULE = """
LIMIT = 3  # a comment

def clipped(x: int, limit: int = 10) -> int:
    \"\"\"At most 3.\"\"\"
    assert limit > 0, "a message"
    return min(x, LIMIT)

def doubled(x):
    if x < 0:
        raise ValueError(f"{x - 1} is negative")
    return 2 * x
"""
TEST = """
import pytest
from toy.part.module import clipped, doubled

@pytest.fixture(scope="session")
def shared():
    return clipped(5)

def test_it_is_clipped(shared):
    assert clipped(2) == 2

def test_it_is_clipped_from_above(shared):
    assert shared == 3
"""
RUN = "import json, pathlib; from benchmarks.mutants import run; found = run(pathlib.Path(%r), ['toy'], 99, 1, 2)"


def toy(root: Path) -> None:
    for name, text in {"toy/part/module.py": MODULE, "tests/part/test_module.py": TEST}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)


def test_mutants_are_one_change_each_and_leave_words_alone(tmp_path: Path) -> None:
    toy(tmp_path)
    found = mutants.mutants_of(tmp_path, "toy/part/module.py")
    assert [(each.line, each.mutated) for each in found] == [
        (2, "LIMIT = 4 # a comment"),
        (4, "def clipped(x: int, limit: int = 11) -> int:"),
        (7, "return None"),
        (7, "return (max(x, LIMIT))"),
        (7, "return (min(LIMIT, LIMIT))"),
        (7, "return (min(x, x))"),
        (10, "if (not (x < 0)):"),
        (10, "if (x <= 0):"),
        (10, "if x < 1:"),
        (11, "pass"),
        (12, "return None"),
        (12, "return (2 / x)"),
        (12, "return 3 * x"),
    ]


@pytest.mark.slow
def test_who_survives_is_told(tmp_path: Path) -> None:
    toy(tmp_path)
    code = RUN % str(tmp_path) + f"; pathlib.Path({str(tmp_path / 'found.json')!r}).write_text(json.dumps(found))"
    path = os.pathsep.join((str(Path(mutants.__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=True, capture_output=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["sample"], found["killed"], found["timeout"], found["survived"]) == (13, 5, 0, 8)
    assert [each["line"] for each in found["survivors"]] == [4, 10, 10, 10, 11, 12, 12, 12]
    assert found["score"] == round(5 / 13, 4)
