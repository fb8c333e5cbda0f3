"""The telemetry log: JSON lines, appended once, each with a CRC32 of its own payload.

``{"crc32":"0f3c…","kind":"step","row":{…}}``. The checkpoint stores the offset up to which the log belongs to it.
"""

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from pydantic import ValidationError

from simic import durable
from simic.errors import SimicError
from simic.telemetry.rows import ROWS, Row

LOG_FILE, TIMING_FILE = "telemetry.jsonl", "timing.jsonl"

_LINE = re.compile(rb'\{"crc32":"([0-9a-f]{8})",("kind":"([a-z]+)","row":(\{.*\}))\}\n', re.DOTALL)


class Intact(NamedTuple):
    """How far a log can be trusted: bytes and lines up to the first damaged or torn line, and whether there is one."""

    length: int
    lines: int
    damaged: bool


def encode(row: Row) -> bytes:
    """One line; the same row always gives the same bytes."""
    payload = f'"kind":"{row.kind}","row":{row.model_dump_json(by_alias=True)}'.encode()
    return b'{"crc32":"%08x",%s}\n' % (zlib.crc32(payload), payload)


def decode(line: bytes) -> Row | None:
    """The row of a line; None when the line is torn, damaged or no row."""
    match = _LINE.fullmatch(line)
    if match is None or zlib.crc32(match[2]) != int(match[1], 16):
        return None
    model = ROWS.get(match[3].decode())
    if model is None:
        return None
    try:
        return model.model_validate_json(match[4])
    except ValidationError:
        return None


def read(path: Path, torn_tail: bool = False) -> Iterator[Row]:
    """Every row in order; SimicError naming the line at the first damaged one.

    With ``torn_tail`` a last line without its end (a write that was cut off) is left out; otherwise it is damage.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if torn_tail and not line.endswith(b"\n"):
                return
            row = decode(line)
            if row is None:
                raise SimicError(f"{path}: line {number} is damaged; rows before it are good")
            yield row


def intact(path: Path) -> Intact:
    """The trustworthy beginning of a log; a file that is not there has none and is not damaged."""
    if not path.exists():
        return Intact(0, 0, False)
    length = lines = 0
    with _opened(path) as file:
        for line in file:
            if decode(line) is None:
                return Intact(length, lines, True)
            length, lines = length + len(line), lines + 1
    return Intact(length, lines, False)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise SimicError(f"{path}: telemetry not readable: {error.strerror}") from None


class Recorder:
    """The one writer of a log; rows are on disk after ``flush_and_sync``, not before."""

    def __init__(self, path: Path):
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        except OSError as error:
            raise self._error(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def append(self, row: Row) -> None:
        """Adds one row at the end."""
        try:
            self._file.write(encode(row))
        except OSError as error:
            raise self._error(error) from None

    def flush_and_sync(self) -> int:
        """Waits until all rows are on disk; the log's length in bytes."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._error(error) from None
        return self._file.tell()

    def truncate(self, offset: int) -> int:
        """Drops all that is beyond ``offset``; how many rows (a torn one counts) went. SimicError beyond the end."""
        length = self.flush_and_sync()
        if offset > length:
            raise SimicError(f"{self.path}: {length} bytes, but the checkpoint was written at {offset}: rows are lost")
        with self.path.open("rb") as file:
            file.seek(offset)
            dropped = sum(1 for _ in file)
        self._file.truncate(offset)
        self._file.seek(0, os.SEEK_END)  # writes append wherever the position is, but tell() would be wrong
        self.flush_and_sync()
        return dropped

    def close(self) -> None:
        """Syncs and closes."""
        self.flush_and_sync()
        self._file.close()

    def _abandon(self) -> None:
        """Closes on the way out of an error."""
        with suppress(OSError):  # rows that cannot be written any more must not hide that error
            self._file.close()

    def _error(self, error: OSError) -> SimicError:
        return SimicError(f"{self.path}: telemetry cannot be written: {error.strerror}; what was written is kept")


def keep_before(path: Path, iteration: int) -> None:
    """Rewrites a timing log without the rows of this and later iterations, and without a torn tail."""
    if not path.exists():
        return
    durable.replace_file(
        path, b"".join(encode(row) for row in _good(path) if getattr(row, "iteration", -1) < iteration)
    )


def _good(path: Path) -> Iterator[Row]:
    with _opened(path) as file:
        for line in file:
            row = decode(line)
            if row is not None:
                yield row


class Silent(Recorder):
    """The log of a process that does not write."""

    def __init__(self) -> None:
        self.path = Path(os.devnull)

    def append(self, row: Row) -> None:
        """Nothing: the first process has it."""

    def flush_and_sync(self) -> int:
        return 0

    def truncate(self, offset: int) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""

    def _abandon(self) -> None:
        """Nothing is open."""
