"""Keep a file of JSON lines to which entries are only ever added, each on disk before the next step is taken."""

import fcntl
import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from simic import durable
from simic.errors import SimicError

Row = TypeVar("Row")


class Entry(BaseModel):
    """A line of a journal."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def append(path: Path, entry: Entry) -> None:
    """Add a line and wait until it is on disk. Of the last line of a killed process what it has written goes: nobody
    has acted on it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with durable.naming(path), path.open("ab+") as file:
        # What another process adds meanwhile must not go.
        fcntl.flock(file, fcntl.LOCK_EX)
        # In this mode every write goes to the end, wherever the file was read.
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(entry.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    # The first line made the file, whose name is then on disk too.
    durable.sync(path.parent)


def read(path: Path, rows: TypeAdapter[Row]) -> list[Row]:
    """Read all lines in order, without one that was not finished; SimicError naming a damaged one."""
    # What follows the last line break was not finished.
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    entries = list[Row]()
    for number, line in enumerate(lines, 1):
        try:
            entries.append(rows.validate_json(line))
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise SimicError(
                f"{path}: line {number} is damaged: {reason}; bring the file back, or move it away"
            ) from None
    return entries
