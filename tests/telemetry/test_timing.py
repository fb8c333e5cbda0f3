"""Wall times: one line for each iteration, in a file of their own."""

import pytest

from simic.errors import SimicError
from simic.telemetry.rows import TimingRow
from simic.telemetry.timing import append, keep_before, read


@pytest.fixture
def path(tmp_path):
    for iteration in range(5):
        seconds = dict.fromkeys(("collect_seconds", "update_seconds", "validate_seconds", "record_seconds"), 1.0)
        append(tmp_path / "timing.jsonl", TimingRow(iteration=iteration, **seconds))
    return tmp_path / "timing.jsonl"


def test_rows_come_back_as_they_went_in(path):
    assert [(row.iteration, row.collect_seconds) for row in read(path)] == [(i, 1.0) for i in range(5)]


def test_rows_before_an_iteration_are_kept_and_a_torn_one_is_not(path):
    path.write_bytes(path.read_bytes()[:-3])
    keep_before(path, 9)
    assert [row.iteration for row in read(path)] == [0, 1, 2, 3]
    keep_before(path, 3)
    assert [row.iteration for row in read(path)] == [0, 1, 2]


def test_a_file_that_is_not_there_becomes_an_empty_one(tmp_path):
    keep_before(tmp_path / "none.jsonl", 3)
    assert read(tmp_path / "none.jsonl") == []


def test_a_damaged_line_is_named(path):
    path.write_bytes(path.read_bytes().replace(b'"iteration":2', b'"iteration":x'))
    with pytest.raises(SimicError, match=r"timing\.jsonl: line 3 is damaged; rows before it are good"):
        read(path)
    with pytest.raises(SimicError, match=r"none\.jsonl: telemetry not readable: No such file"):
        read(path.with_name("none.jsonl"))
