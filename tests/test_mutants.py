"""Mutants are small changes of the code, never of its words."""

from pathlib import Path

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


def test_mutants_are_one_change_each_and_leave_words_alone(tmp_path: Path) -> None:
    (tmp_path / "toy" / "part").mkdir(parents=True)
    (tmp_path / "toy" / "part" / "module.py").write_text(MODULE)
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
