"""Wall times: a JSON line for each iteration, apart from the log because they differ between equal runs."""

from pathlib import Path

from pydantic import ValidationError

from simic import durable
from simic.errors import SimicError
from simic.telemetry.rows import TimingRow

TIMING_FILE = "timing.jsonl"


def append(path: Path, row: TimingRow) -> None:
    """Adds one line; OSError as the system reports it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(row.model_dump_json() + "\n")


def read(path: Path) -> list[TimingRow]:
    """All rows; SimicError naming the line that is none."""
    found = []
    for number, line in enumerate(_lines(path), 1):
        row = _row(line)
        if row is None:
            raise SimicError(f"{path}: line {number} is damaged; rows before it are good")
        found.append(row)
    return found


def keep_before(path: Path, iteration: int) -> None:
    """Rewrites the file without the rows of this and later iterations, and without what is no row."""
    rows = [_row(line) for line in _lines(path)] if path.exists() else []
    kept = [row.model_dump_json() + "\n" for row in rows if row is not None and row.iteration < iteration]
    durable.replace_file(path, "".join(kept).encode())


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise SimicError(f"{path}: telemetry not readable: {error.strerror}") from None


def _row(line: bytes) -> TimingRow | None:
    try:
        return TimingRow.model_validate_json(line)
    except ValidationError:
        return None
