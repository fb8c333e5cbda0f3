"""Wall times: one line for each iteration, in a file of their own."""

from math import isnan

import pytest

from simic.errors import SimicError
from simic.telemetry.rows import TimingRow
from simic.telemetry.timing import append, keep_before, read

SECONDS = dict.fromkeys(
    ("collect_seconds", "update_seconds", "validate_seconds", "record_seconds"), 1.0
)


@pytest.fixture
def path(tmp_path):
    for iteration in range(5):
        append(tmp_path / "timing.jsonl", TimingRow(iteration=iteration, **SECONDS))
    return tmp_path / "timing.jsonl"


def test_rows_before_an_iteration_are_kept_and_a_torn_one_is_not(path):
    path.write_bytes(path.read_bytes()[:-3])
    assert keep_before(path, 4) == 0
    assert [row.iteration for row in read(path)] == [0, 1, 2, 3]
    before = path.read_bytes()
    assert keep_before(path, 3) == 0
    assert [row.iteration for row in read(path)] == [0, 1, 2]
    append(path, TimingRow(iteration=3, **SECONDS))
    assert path.read_bytes() == before


def test_what_is_damaged_or_missing_before_an_iteration_becomes_a_gap_and_is_counted(path):
    path.write_bytes(path.read_bytes().replace(b'"iteration":2', b'"iteration":9'))
    assert keep_before(path, 5) == 3
    assert [(row.iteration, isnan(row.collect_seconds)) for row in read(path)] == [
        (i, i > 1) for i in range(5)
    ]
    append(path, TimingRow(iteration=5, **SECONDS))
    assert len(read(path)) == 6


def test_a_file_that_is_not_there_is_all_gap(tmp_path):
    assert keep_before(tmp_path / "none.jsonl", 0) == 0
    assert read(tmp_path / "none.jsonl") == []
    assert keep_before(tmp_path / "other.jsonl", 2) == 2


LINES = {
    "digit": lambda lines: [*lines[:2], lines[2].replace(b"1.0", b"2.0", 1), *lines[3:]],
    "dropped": lambda lines: [*lines[:2], *lines[3:]],
    "torn": lambda lines: [*lines[:2], lines[2][:-4]],
}


@pytest.mark.parametrize("damage", LINES)
def test_a_damaged_line_is_named(path, damage):
    path.write_bytes(b"".join(LINES[damage](path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(
        SimicError, match=r"timing\.jsonl: line [34] is damaged; rows before it are good"
    ):
        read(path)
    with pytest.raises(SimicError, match=r"none\.jsonl: telemetry not readable: No such file"):
        read(path.with_name("none.jsonl"))
