"""Keep wall times: a JSON line for each iteration, apart from the log because they differ between equal runs. Each line
has the CRC of itself and the line before it.
"""

import json
import math
import os
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
    with path.open("a+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(_CRC.format(0))))
        file.write(_line(row, file.read()))


def _line(row: TimingRow, before: bytes) -> bytes:
    """Return the line that follows ``before``, or the end of a line."""
    content = row.model_dump_json().removesuffix("}").encode()
    return content + _CRC.format(zlib.crc32(before[-len(_CRC.format(0)) :] + content)).encode()


def read(path: Path) -> list[TimingRow]:
    """Return all rows, of one iteration after the other from the first on; SimicError naming a damaged line."""
    rows, whole = _good(path)
    if not whole:
        raise SimicError(f"{path}: line {len(rows) + 1} is damaged; rows before it are good")
    return rows


def keep_before(path: Path, iteration: int) -> int:
    """Rewrite the file without the rows of this and later iterations; return how many before it were damaged, whose
    times become NaN.
    """
    kept = _good(path)[0][:iteration] if path.exists() else []
    nothing = dict.fromkeys(TimingRow.model_fields.keys() - {"iteration"}, math.nan)
    rows = [*kept, *(TimingRow(iteration=each, **nothing) for each in range(len(kept), iteration))]
    lines = [b""]
    for row in rows:
        lines.append(_line(row, lines[-1]))
    durable.replace_file(path, b"".join(lines))
    return iteration - len(kept)


def _good(path: Path) -> tuple[list[TimingRow], bool]:
    """Return the rows before the first line that is not what was written, and whether these are all."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise SimicError(f"{path}: telemetry not readable: {error.strerror}") from None
    rows, before = list[TimingRow](), b""
    for line in lines:
        row = _row(line)
        if row is None or row.iteration != len(rows) or _line(row, before) != line:
            return rows, False
        rows.append(row)
        before = line
    return rows, True


def _row(line: bytes) -> TimingRow | None:
    try:
        content = json.loads(line)
        del content["crc"]
        return TimingRow.model_validate(content)
    except (ValueError, TypeError, KeyError, RecursionError, ValidationError):
        return None
