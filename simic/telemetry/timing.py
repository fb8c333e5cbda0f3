"""Keep wall times: a JSON line for each iteration, apart from the log because they differ between equal runs. Each line
ends with a CRC of itself.
"""

import math
import zlib
from pathlib import Path

from pydantic import ValidationError

from simic import durable
from simic.errors import SimicError
from simic.telemetry.rows import TimingRow

TIMING_FILE = "timing.jsonl"
_CRC = ',"crc":"{:08x}"}}\n'  # how every line ends


def append(path: Path, row: TimingRow) -> None:
    """Add one line; OSError as the system reports it."""
    # Not synced: a line lost in a crash costs one measurement, a sync would cost time in every iteration.
    with path.open("ab") as file:
        file.write(_line(row))


def _line(row: TimingRow) -> bytes:
    content = row.model_dump_json()
    return (content.removesuffix("}") + _CRC.format(zlib.crc32(content.encode()))).encode()


def read(path: Path) -> list[TimingRow]:
    """Read all rows, of one iteration after the other from the first on; SimicError naming a damaged line."""
    rows, complete = _good(path)
    if not complete:
        raise SimicError(f"{path}: line {len(rows) + 1} is damaged; rows before it are good")
    return rows


def keep_before(path: Path, iteration: int) -> int:
    """Rewrite the file without the rows of this and later iterations; return how many before it were damaged, whose
    times become NaN.
    """
    # What follows is timed again; a row that was lost keeps its place, as rows are found by their number.
    rows = _good(path)[0][:iteration] if path.exists() else []
    unmeasured = dict.fromkeys(TimingRow.model_fields.keys() - {"iteration"}, math.nan)
    lost = [TimingRow(iteration=number, **unmeasured) for number in range(len(rows), iteration)]
    durable.replace_file(path, b"".join(map(_line, [*rows, *lost])))
    return len(lost)


def _good(path: Path) -> tuple[list[TimingRow], bool]:
    """Read the rows before the first line that is not what was written, and whether these are all."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise SimicError(f"{path}: telemetry not readable: {error.strerror}") from None
    # A line counts if it is the next iteration's and is exactly what would be written.
    rows = list[TimingRow]()
    for line in lines:
        try:
            row = TimingRow.model_validate_json(line[: -len(_CRC.format(0))] + b"}")
        except ValidationError:
            return rows, False
        # Written again and compared: a changed digit that is still a number is found too.
        if row.iteration != len(rows) or _line(row) != line:
            return rows, False
        rows.append(row)
    return rows, True
