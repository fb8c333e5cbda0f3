"""Read what a server noted of its requests, and the labels that arrive later."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simic.data.own import predict
from simic.data.own.readers import most_bytes
from simic.errors import SimicError
from simic.serving.request_log import OWN_COLUMNS

TIME, REQUEST, MODEL, PREDICTED, _ = OWN_COLUMNS
ANSWER = "true class"


@dataclass(frozen=True)
class NotedRequests:
    """The rows of each file of a request log, in order of time."""

    files: dict[str, pd.DataFrame]
    # Damaged files.
    unreadable: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read a request log; SimicError where it is none."""
        if not folder.is_dir():
            raise SimicError(f"{folder}: no such folder; must be the request log of simic serve")
        files = dict[str, pd.DataFrame]()
        unreadable = list[str]()
        for path in sorted(folder.glob("requests-*.parquet")):
            try:
                files[path.name] = pq.read_table(path).to_pandas()
            except pa.ArrowInvalid:
                unreadable.append(path.name)
        # Other Parquet files of such a name are no log.
        missing = [name for rows in files.values() for name in OWN_COLUMNS if name not in rows]
        if missing:
            raise SimicError(f"{folder}: no column {missing[0]!r}; must be a request log of simic")
        return cls(files, tuple(unreadable))

    @property
    def sizes(self) -> dict[str, int]:
        """Count the rows of each file."""
        return {name: len(rows) for name, rows in self.files.items()}

    def rows(self, read: Mapping[str, int] = MappingProxyType({})) -> Any:
        """Join the rows of all files, without the first ``read`` of each."""
        parts = [rows.iloc[read.get(name, 0) :] for name, rows in self.files.items()]
        # Without rows a part has no types, which would become those of the whole.
        parts = [rows for rows in parts if len(rows)]
        empty = pd.DataFrame(columns=list(OWN_COLUMNS))
        return pd.concat(parts, ignore_index=True) if parts else empty


def labelled(rows: Any, path: Path, label: str) -> pd.DataFrame:
    """Take the rows that have a label, in order of time, with it as the column ``ANSWER``.

    Args:
        rows: Of the request log.
        path: A table with the columns ``request``, as in the log, and the label.
        label: Name of that column.

    Raises:
        SimicError: The table cannot be read or lacks a column.
    """
    try:
        table, _ = predict.read_table(path, most_bytes())
    except (OSError, ValueError) as error:
        raise SimicError(f"{path}: cannot be read: {error}") from None
    # Whoever labels may have more columns than these.
    if missing := [name for name in (REQUEST, label) if name not in table]:
        raise SimicError(
            f"{path}: no column {missing[0]!r}: must have the columns {REQUEST} and {label}"
        )
    answers: Any = pd.DataFrame(
        {REQUEST: predict.as_text(table[REQUEST]), ANSWER: predict.as_text(table[label])}
    )
    # A label that was corrected counts as it is now.
    answers = answers.dropna().drop_duplicates(REQUEST, keep="last")
    return rows.sort_values(TIME, kind="stable").merge(answers, on=REQUEST)


def features(rows: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Take the columns of a network: one that has the name of a column of the log has an underscore there."""
    return pd.DataFrame({name: rows[f"{name}_" if name in OWN_COLUMNS else name] for name in names})
