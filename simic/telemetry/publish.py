"""The finished log as tables: one parquet file per kind, the same bytes for the same rows; wall times apart.

Rows that hold one value per host become one table row per host. Nested values are columns of their own, joined by
"/": ``components/rent``, ``entropy_by_head/op``.
"""

import json
import shutil
import types
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq

from simic import durable
from simic.telemetry import recorder
from simic.telemetry.recorder import TIMING_FILE
from simic.telemetry.rows import EpisodeRow, EventRow, FindingRow, Row, StepRow, UpdateRow

TABLES: dict[type[Row], str] = {
    UpdateRow: "updates.parquet",
    StepRow: "steps.parquet",
    EpisodeRow: "episodes.parquet",
    EventRow: "events.parquet",
    FindingRow: "findings.parquet",
}
ROWS_PER_GROUP = 2000

_SCALARS = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
Columns = dict[str, tuple[pa.DataType, list]]


def publish(log: Path, timing: Path, out_dir: Path) -> None:
    """Writes ``out_dir`` anew, whole or not at all; SimicError naming the line where the log is damaged."""
    with durable.new_directory(out_dir) as folder:
        with ExitStack() as files:
            tables = {kind: files.enter_context(TableWriter(kind, folder / name)) for kind, name in TABLES.items()}
            for row in recorder.read(log):
                tables[type(row)].append(row)
        shutil.copyfile(timing, folder / TIMING_FILE)


class TableWriter:
    """One parquet file, written in groups of rows."""

    def __init__(self, kind: type[Row], path: Path):
        self._kind, self._path = kind, path
        self._pending: list[Row] = []
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None and (self._pending or self._writer is None):
            self._write()
        if self._writer is not None:
            self._writer.close()

    def append(self, row: Row) -> None:
        self._pending.append(row)
        if len(self._pending) >= ROWS_PER_GROUP:
            self._write()

    def _write(self) -> None:
        """The pending rows as one group; without any, a file that has the columns alone."""
        columns = _columns(self._kind, self._pending)
        table = pa.table({name: pa.array(values, type=kind) for name, (kind, values) in columns.items()})
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)
        self._pending = []


def _columns(kind: type[Row], rows: list[Row]) -> Columns:
    """Every column with its type, in the order of the fields; one entry per row, or per row and host."""
    per_host = any(get_origin(field.annotation) is list for field in kind.model_fields.values())
    hosts = [len(next(_lists(row))) if per_host else 1 for row in rows]
    columns: Columns = {}
    for name, field in kind.model_fields.items():
        label = field.alias or name
        values = [getattr(row, name) for row in rows]
        columns |= _field(label, field.annotation, values, hosts)
    if per_host:
        columns["env"] = (pa.int64(), [env for count in hosts for env in range(count)])
    return columns


def _lists(row: Row) -> Iterator[list]:
    return (value for value in vars(row).values() if isinstance(value, list))


def _field(name: str, annotation: Any, values: list, hosts: list[int]) -> Columns:
    """The columns of one field: several for a mapping, one for anything else."""
    if get_origin(annotation) is not dict:
        return {name: _column(annotation, values, hosts)}
    inner = get_args(annotation)[1]
    if get_origin(inner) in (Union, types.UnionType):  # values of any kind: kept as text
        return {name: (pa.string(), [json.dumps(value, sort_keys=True) for value in values])}
    keys = list(values[0]) if values else []
    # Metrics have names of their own; only values per host need their field's name in front.
    prefix = f"{name}/" if get_origin(inner) is list else ""
    return {prefix + key: _column(inner, [value[key] for value in values], hosts) for key in keys}


def _column(annotation: Any, values: list, hosts: list[int]) -> tuple[pa.DataType, list]:
    if get_origin(annotation) is list:
        inner = get_args(annotation)[0]
        exploded = [item for value in values for item in value]
        if get_origin(inner) is list:
            return pa.list_(_SCALARS[get_args(inner)[0]]), exploded
        return _SCALARS[inner], exploded
    repeated = [value for value, count in zip(values, hosts, strict=True) for _ in range(count)]
    return _scalar(annotation), repeated


def _scalar(annotation: Any) -> pa.DataType:
    if get_origin(annotation) in (Union, types.UnionType):  # int | None
        [annotation] = [kind for kind in get_args(annotation) if kind is not type(None)]
    return _SCALARS.get(annotation, pa.string())  # a Literal is text
