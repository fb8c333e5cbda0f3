"""Write and check the telemetry log: a folder of immutable files, one per iteration, each with the hash of the last.

``telemetry/000000.safetensors`` holds the columns of an iteration as arrays, and in its metadata all that is small: the
update, the findings since the file before it, the texts of events. Findings that no iteration follows are a file of
their own. A checkpoint stores how many files belong to it and the hash of the last one.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from simic import durable
from simic.errors import SimicError
from simic.telemetry import timing
from simic.telemetry.columns import EVENTS, GROWTH, Columns, EventColumns, TableLayout, arranged
from simic.telemetry.rows import FindingRow, TimingRow, UpdateRow

FOLDER = "telemetry"
SUFFIX = ".safetensors"
STATE_TABLE = "state"
DECISIONS_TABLE = "decisions"
_METADATA = "log"


class Extent(NamedTuple):
    """How much of a log belongs to a state: its first ``files`` files, the last of which has this sha256."""

    files: int = 0
    sha256: str = ""


NOTHING = Extent()


@dataclass(frozen=True)
class Iteration:
    """All that is recorded of one iteration."""

    update: UpdateRow
    steps: Columns
    train: Columns  # the episodes that trained the policy
    validation: Columns | None  # those that choose the best checkpoint, where they were played
    events: EventColumns
    state: Columns = field(
        default_factory=dict
    )  # before it, of the few iterations that the audit can play again
    decisions: Columns = field(default_factory=dict)  # of the validation episodes
    layout: TableLayout = GROWTH

    def tables(self) -> dict[str, Columns]:
        """Arrange the tables by name; ValueError where columns are not those of their table."""
        tables = {"steps": arranged(self.steps, self.layout.steps)}
        if self.validation is not None:
            tables["validation"] = arranged(self.validation, self.layout.episodes)
        tables["train"] = arranged(self.train, self.layout.episodes)
        tables["events"] = arranged(self.events.columns, EVENTS)
        # Of few iterations alone.
        if self.state:
            tables[STATE_TABLE] = self.state
        if self.decisions:
            tables[DECISIONS_TABLE] = self.decisions
        return tables


def encode(previous: str, iteration: Iteration | None, findings: list[FindingRow]) -> bytes:
    """Encode a file of the log; the same iteration after the same file always gives the same bytes.

    Args:
        previous: sha256 of the file before it.
        iteration: What was recorded; None in a file of findings alone.
        findings: Those that were reported since the file before it.
    """
    tables = iteration.tables() if iteration else {}
    # What is small is JSON; one text, since several entries would be written in any order.
    metadata = {
        "previous": previous,
        "update": iteration.update.model_dump() if iteration else None,
        "findings": [finding.model_dump() for finding in findings],
        "tables": {name: list(columns) for name, columns in tables.items()},
        "texts": iteration.events.texts if iteration else [],
    }
    # Contiguous: safetensors writes the memory of a view as it lies there.
    arrays = {
        f"{table}/{name}": np.asarray(values, order="C")
        for table, columns in tables.items()
        for name, values in columns.items()
    }
    return save(arrays, {_METADATA: json.dumps(metadata)})


class LogFile:
    """One file of a log; columns are read when they are asked for. SimicError where it is not what was written."""

    def __init__(self, path: Path):
        self.path = path

    @cached_property
    def _metadata(self) -> dict[str, Any]:
        # Kept, unlike columns: it is small, and every property reads it.
        with _readable(self.path), safe_open(self.path, "np") as file:
            return json.loads(file.metadata()[_METADATA])

    @property
    def previous(self) -> str:
        """The sha256 of the file before it."""
        with _readable(self.path):
            return self._metadata["previous"]

    @property
    def update(self) -> UpdateRow | None:
        """The update; None in a file of findings alone."""
        with _readable(self.path):
            row = self._metadata["update"]
            return None if row is None else UpdateRow.model_validate(row)

    @property
    def findings(self) -> list[FindingRow]:
        """The findings in the order in which they were reported."""
        return [FindingRow.model_validate(row) for row in self._metadata["findings"]]

    @property
    def events(self) -> EventColumns:
        """The events of the iteration's steps, in order."""
        # JSON has lists where tuples are compared.
        return EventColumns(
            self.columns("events"), [(name, detail) for name, detail in self._metadata["texts"]]
        )

    def columns(self, table: str) -> Columns:
        """Read the columns of ``steps``, ``train``, ``validation`` …; empty where there are none."""
        names = self._metadata["tables"].get(table, [])
        with _readable(self.path), safe_open(self.path, "np") as file:
            return {name: file.get_tensor(f"{table}/{name}") for name in names}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what a library says of a damaged or missing file into one SimicError."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SimicError(f"{path}: telemetry not readable: {error}") from None


def path_of(folder: Path, number: int) -> Path:
    """Name a file of the log; numbers start at 0."""
    return folder / f"{number:06d}{SUFFIX}"


def read(folder: Path) -> Iterator[LogFile]:
    """Yield the files that are there, in order, unverified: opening a run for training has verified them."""
    yield from (LogFile(path_of(folder, number)) for number in _numbers(folder))


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    # What a killed process left half written is none of the log.
    files = (path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file())
    return sorted(int(path.stem) for path in files if path.stem.isdecimal())


@dataclass(frozen=True)
class Chain:
    """The files of a log as they are on disk, by number."""

    folder: Path
    sha256: dict[int, str]
    previous: dict[int, str]  # sha256 of the file before, by those that can be read
    updates: dict[int, UpdateRow]

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read every file once."""
        # The hash before the content: a damaged file is found by it, whatever is in it.
        chain = cls(folder, {}, {}, {})
        for number in _numbers(folder):
            file = LogFile(path_of(folder, number))
            with _readable(file.path):
                chain.sha256[number] = durable.sha256(file.path)
            with suppress(SimicError):  # one that cannot be read links to nothing
                chain.previous[number] = file.previous
                if (update := file.update) is not None:
                    chain.updates[number] = update
        return chain

    def damage(self, extent: Extent) -> str | None:
        """Say which file is not what was written, looking from the last one back; None when all are."""
        # The state vouches for the last file, and each file for the one before it.
        expected = extent.sha256
        for number in reversed(range(extent.files)):
            if self.sha256.get(number) != expected:
                damage = "damaged" if number in self.sha256 else "missing"
                return f"{path_of(self.folder, number)}: {damage}"
            expected = self.previous[number]
        return None

    def updates_of(self, extent: Extent) -> dict[int, UpdateRow]:
        """Select the updates of so many files, by iterations done."""
        # Later ones are of iterations that will be done again.
        return {
            update.iteration + 1: update
            for number, update in self.updates.items()
            if number < extent.files
        }

    def links(self, extent: Extent) -> dict[int, str]:
        """Select the links of the hash chain of the run's state, by iterations done."""
        return {
            iterations: update.state_chain for iterations, update in self.updates_of(extent).items()
        }


class Recorder:
    """Writes a log, alone. An iteration is on disk when ``write`` returns, a finding after that or ``flush``.

    ``dropped`` files behind the extent were removed; wall times of ``lost_times`` iterations were damaged.
    """

    def __init__(self, work_dir: Path, extent: Extent = NOTHING, iteration: int = 0):
        """Go on behind an extent.

        Args:
            work_dir: Where the log is.
            extent: What belongs to the state that training goes on from; later files are removed.
            iteration: The iteration that comes next.
        """
        self.folder = work_dir / FOLDER
        self._timing = work_dir / timing.TIMING_FILE
        self._extent = extent
        self._findings: list[FindingRow] = []
        try:
            # Only what the checkpoint vouches for goes on; the rest was never part of a state.
            self.folder.mkdir(parents=True, exist_ok=True)
            self.dropped = self._drop()
            self.lost_times = timing.keep_before(self._timing, iteration)
        except OSError as error:
            raise self._error(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # An error ends the run: findings up to it are still written.
        if kind is None:
            self.flush()
        else:
            with suppress(
                SimicError
            ):  # findings that cannot be written any more must not hide that error
                self.flush()

    def _drop(self) -> int:
        """Remove the files after the extent, the last one first, and what a killed process left half written."""
        # From the last one back, so that a kill in between leaves a log without a gap.
        late = [
            path_of(self.folder, number)
            for number in _numbers(self.folder)
            if number >= self._extent.files
        ]
        for path in (*reversed(late), *self.folder.glob(".*.tmp")):
            path.unlink()
        # A folder in the place of a file is somebody's, and is put aside.
        folders = [path for path in self.folder.glob(f"[0-9]*{SUFFIX}") if path.is_dir()]
        for path in folders:
            durable.put_aside(path)
        durable.sync(self.folder)
        return len(late)

    def find(self, finding: FindingRow) -> None:
        """Keep a finding for the next file."""
        self._findings.append(finding)

    def forget(self) -> None:
        """Drop the findings that are in no file yet: the iteration they are about is done again."""
        self._findings.clear()

    def write(self, iteration: Iteration | None) -> None:
        """Write the next file, with the findings since the last one; SimicError when it cannot be written."""
        # Each file has the hash of the one before: a damaged one cannot be exchanged.
        content = encode(self._extent.sha256, iteration, self._findings)
        try:
            durable.replace_file(path_of(self.folder, self._extent.files), content)
        except OSError as error:
            raise self._error(error) from None
        # Only now: a file that failed is written again under the same number.
        self._extent = Extent(self._extent.files + 1, durable.sha256_of(content))
        self._findings.clear()

    def flush(self) -> Extent:
        """Write findings that are in no file yet; return how far the log reaches."""
        # No number is used up by a file without anything in it.
        if self._findings:
            self.write(None)
        return self._extent

    def time(self, row: TimingRow) -> None:
        """Add the wall times of an iteration to their own file."""
        try:
            timing.append(self._timing, row)
        except OSError as error:
            raise self._error(error) from None

    def _error(self, error: OSError) -> SimicError:
        return SimicError(
            f"{self.folder}: telemetry cannot be written: {error.strerror}; what was written is kept"
        )


class Silent(Recorder):
    """Drops the log of a process that does not write, since the first one does."""

    def __init__(self) -> None:
        # Not as the base does, which opens a folder.
        self.dropped = self.lost_times = 0
        self._extent = NOTHING
        self._findings = []

    def write(self, iteration: Iteration | None) -> None:
        """Keep nothing."""
        self._findings.clear()

    def time(self, row: TimingRow) -> None:
        """Keep nothing."""
