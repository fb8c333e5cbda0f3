"""Publish the finished log as tables: a parquet file per kind, and the learning curves; the same bytes for the same
log; wall times apart.

Steps and episodes become one table row per host. Nested values are columns of their own, joined by "/":
``components/rent``, ``entropy_by_head/op``.
"""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from simic import durable
from simic.errors import SimicError
from simic.telemetry import starts, timing
from simic.telemetry.columns import Array, Columns, EventColumns, published
from simic.telemetry.curves import CURVES_FILE, METRICS_FILE, Curves
from simic.telemetry.recorder import (
    DECISIONS_TABLE,
    FOLDER,
    STATE_TABLE,
    Chain,
    Extent,
    LogFile,
    path_of,
)
from simic.telemetry.rows import FindingRow, Row, UpdateRow
from simic.telemetry.starts import RUN_FILE
from simic.telemetry.timing import TIMING_FILE

UPDATES_FILE = "updates.parquet"
STEPS_FILE = "steps.parquet"
EPISODES_FILE = "episodes.parquet"
EVENTS_FILE = "events.parquet"
FINDINGS_FILE = "findings.parquet"
TABLES = (UPDATES_FILE, STEPS_FILE, EPISODES_FILE, EVENTS_FILE, FINDINGS_FILE)
KEPT_FILE = "iteration_{:06d}.safetensors"  # the state before it
# Decisions of the episodes that chose the best checkpoint
VALIDATED_FILE = "validation.safetensors"
ROWS_PER_GROUP = 1 << 17  # at least, and at most the rows of an iteration more


def publish(work_dir: Path, extent: Extent, out_dir: Path, states: Collection[int] = ()) -> None:
    """Write the published telemetry anew, whole or not at all.

    Args:
        work_dir: Where the log is.
        extent: What of it is published.
        out_dir: The folder that is replaced.
        states: Iterations of which the state before them is published too.

    Raises:
        SimicError: A file of the log is damaged.
    """
    # Nothing is derived from a log that is not as it was written.
    log = Chain.of(work_dir / FOLDER)
    if (damage := _damage(log, work_dir, extent)) is not None:
        raise SimicError(
            f"{damage}; run the same command again: it goes on from what is good and says what is lost"
        )
    updates = log.updates_of(extent)
    # The last update knows the best of the whole run.
    best = updates[max(updates)].best_iteration
    with durable.new_directory(out_dir) as folder:
        # Tables, a file of the log at a time: a long run does not fit into memory.
        curves = Curves()
        with ExitStack() as files:
            tables = {name: files.enter_context(TableWriter(folder / name)) for name in TABLES}
            for number in range(extent.files):
                file = LogFile(path_of(log.folder, number))
                _append(file, tables, curves)
                if (update := file.update) is not None:
                    if update.iteration in states:
                        _copy(file, STATE_TABLE, folder / KEPT_FILE.format(update.iteration))
                    if update.iteration + 1 == best:
                        _copy(file, DECISIONS_TABLE, folder / VALIDATED_FILE)
        # Curves and last numbers for DVC; times and starts as they are.
        (folder / CURVES_FILE).write_text(curves.csv(), encoding="utf-8")
        (folder / METRICS_FILE).write_text(curves.metrics(), encoding="utf-8")
        for name in (TIMING_FILE, RUN_FILE):
            if (work_dir / name).exists():  # a log without a session has no starts
                shutil.copyfile(work_dir / name, folder / name)


def links(work_dir: Path, extent: Extent) -> dict[int, str]:
    """Read the hash chain of the run's state, by iterations done."""
    return Chain.of(work_dir / FOLDER).links(extent)


def _copy(file: LogFile, table: str, path: Path) -> None:
    """Write a table's columns as a file of their own, if the log has any."""
    if columns := file.columns(table):
        path.write_bytes(
            save({name: np.asarray(values, order="C") for name, values in columns.items()})
        )


def _damage(log: Chain, work_dir: Path, extent: Extent) -> str | None:
    """Say what is not as it was written: of the log, the wall times, or the starts that a session has."""
    times = work_dir / TIMING_FILE
    # The log first: it is what everything else is derived from.
    damage = log.damage(extent)
    if damage is not None:
        return damage
    # Any damage counts: a page would show what is left as if it were all.
    try:
        rows = len(timing.read(times))
        if (work_dir / RUN_FILE).exists():
            starts.read(work_dir / RUN_FILE)
    except SimicError as error:
        return str(error)
    iterations = max(log.updates_of(extent), default=0)
    # More wall times than iterations are those of iterations that were taken back.
    return (
        None
        if rows >= iterations
        else f"{times}: wall times of {rows} iterations, there were {iterations}"
    )


def _append(file: LogFile, tables: "dict[str, TableWriter]", curves: Curves) -> None:
    # First, since a file may have findings alone.
    tables[FINDINGS_FILE].append(findings_table(file.findings))
    update = file.update
    if update is None:
        return
    tables[UPDATES_FILE].append(updates_table(update))
    curves.append(update, file.columns("train"))
    # Rows of the iteration, of each kind.
    number = update.iteration
    tables[STEPS_FILE].append(steps_table(number, file.columns("steps")))
    for split in ("validation", "train"):  # in the order in which they were recorded
        if episodes := file.columns(split):
            tables[EPISODES_FILE].append(episodes_table(number, split, episodes))
    tables[EVENTS_FILE].append(events_table(number, file.events))


class TableWriter:
    """Writes one parquet file in groups of rows."""

    def __init__(self, path: Path):
        self._path = path
        self._pending: list[pa.Table] = []
        self._rows = 0
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # A table without rows is written too: readers find every file, with its columns.
        if kind is None and (self._rows or self._writer is None):
            self._write()
        if self._writer is not None:
            self._writer.close()

    def append(self, table: pa.Table) -> None:
        """Add rows; a file to which nothing else is added has the columns of a table without any."""
        self._pending.append(table)
        self._rows += len(table)
        # Small groups of rows cost space, large ones memory.
        if self._rows >= ROWS_PER_GROUP:
            self._write()

    def _write(self) -> None:
        # One chunk for each group of rows, so that the bytes do not depend on how rows came.
        group = pa.concat_tables(self._pending)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, group.schema)
        self._writer.write_table(group.combine_chunks())
        self._pending = []
        self._rows = 0


def steps_table(iteration: int, steps: Columns) -> pa.Table:
    """Make one row per step and host."""
    # Step by step, the hosts of a step side by side: the order in which the arrays lie in memory.
    count, hosts = steps["reward"].shape
    # Steps count from 1, as in the report; iterations and hosts from 0, as in the log.
    axes = {
        "iteration": np.full(count * hosts, iteration),
        "step": np.repeat(np.arange(1, count + 1), hosts),
    }
    arrays = {
        name: _array(values.reshape(count * hosts, *values.shape[2:]))
        for name, values in steps.items()
    }
    return pa.table({**axes, **arrays, "env": np.tile(np.arange(hosts), count)})


def episodes_table(iteration: int, split: str, episodes: Columns) -> pa.Table:
    """Make one row per host.

    Args:
        iteration: Number of the iteration, from 0.
        split: ``train`` or ``validation``.
        episodes: Columns ``[E]``.
    """
    hosts = len(episodes["env_id"])
    axes = {
        "iteration": np.full(hosts, iteration),
        "split": pa.array([split]).take(np.zeros(hosts, dtype=np.int64)),
    }
    return pa.table(
        {
            **axes,
            **{name: _array(values) for name, values in episodes.items()},
            "env": np.arange(hosts),
        }
    )


def events_table(iteration: int, events: EventColumns) -> pa.Table:
    """Make one row per event."""
    columns = events.columns
    # Each text is made once and taken by its number: a string for each event would cost most of the time.
    name, detail = (pa.array([text[part] for text in events.texts], pa.string()) for part in (0, 1))
    return pa.table(
        {
            "iteration": np.full(len(columns["step"]), iteration),
            "step": columns["step"],
            "name": name.take(columns["text"]),
            "env": columns["env"],
            "slot": columns["slot"],
            "detail": detail.take(columns["text"]),
        }
    )


def updates_table(update: UpdateRow) -> pa.Table:
    """Make the row of an update, its metrics under their own names."""
    metrics = {name: pa.array([value], pa.float64()) for name, value in update.metrics.items()}
    # Types are said: of a column without a value pyarrow would make one of nulls.
    after = {"validation_accuracy": pa.float64(), "best_iteration": pa.int64()}
    after |= dict.fromkeys(("state_chain", "state_begun", "state_ended"), pa.string())
    before = {"iteration": pa.int64(), "env_steps": pa.int64()}
    return pa.table({**_columns([update], before), **metrics, **_columns([update], after)})


def findings_table(findings: list[FindingRow]) -> pa.Table:
    """Make one row per finding, its evidence as JSON."""
    kinds = {
        "iteration": pa.int64(),
        **dict.fromkeys(("check", "severity", "message"), pa.string()),
    }
    # With sorted keys, since equal runs must publish equal bytes.
    evidence = pa.array(
        [json.dumps(finding.evidence, sort_keys=True) for finding in findings], pa.string()
    )
    return pa.table({**_columns(findings, kinds), "evidence": evidence})


def _columns(rows: Sequence[Row], kinds: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    return {
        name: pa.array([getattr(row, name) for row in rows], kind) for name, kind in kinds.items()
    }


def _array(values: Array) -> pa.Array:
    """Convert a column to what is published; values per slot as lists."""
    flat = pa.array(published(values).reshape(-1))
    if values.ndim == 1:
        return flat
    # Every host has as many slots, so lists begin at multiples of their number.
    rows, slots = values.shape
    return pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * slots, flat)
