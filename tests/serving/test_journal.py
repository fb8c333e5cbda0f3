"""A journal loses no line that was finished, and believes none that was not."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from simic.errors import SimicError
from simic.serving import journal
from simic.serving.journal import Entry


class Number(Entry):
    """A line."""

    value: int


ROWS = TypeAdapter(Number)


def test_of_a_line_that_was_cut_short_nothing_is_read_and_nothing_stays(tmp_path: Path) -> None:
    file = tmp_path / "new" / "journal.jsonl"
    assert journal.read(file, ROWS) == []
    journal.append(file, Number(value=1))
    whole = file.read_bytes()
    for cut in range(1, len(whole)):
        file.write_bytes(whole + whole[:cut])
        assert journal.read(file, ROWS) == [Number(value=1)]
    journal.append(file, Number(value=2))
    assert journal.read(file, ROWS) == [Number(value=1), Number(value=2)]


def test_lines_of_several_processes_all_stay(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    with ThreadPoolExecutor(4) as threads:
        [*threads.map(lambda value: journal.append(file, Number(value=value)), range(40))]
    assert sorted(entry.value for entry in journal.read(file, ROWS)) == [*range(40)]


@pytest.mark.parametrize("line", [b"{}", b'{"value": NaN}', b'{"value": 1, "more": 2}', b"\xff"])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_bytes(b'{"value":1}\n' + line + b"\n")
    with pytest.raises(SimicError, match=r"journal.jsonl: line 2 is damaged: .*; bring"):
        journal.read(file, ROWS)
