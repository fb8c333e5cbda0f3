"""Read what a server noted of its requests, and the labels that arrive later."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simic.data.own import predict
from simic.data.own.contract import Contract
from simic.data.own.readers import most_bytes
from simic.errors import SimicError
from simic.serving.request_log import OWN_COLUMNS, logged_name

TIME, REQUEST, MODEL, PREDICTED, _ = OWN_COLUMNS
ANSWER = "true class"


@dataclass(frozen=True)
class NotedRequests:
    """The rows of each file of a request log, in order of time."""

    files: dict[str, pd.DataFrame]
    # Damaged files.
    unreadable: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path, without: Set[str] = frozenset()) -> Self:
        """Read a request log, without the files of these names; SimicError where it is none."""
        if not folder.is_dir():
            raise SimicError(f"{folder}: no such folder; must be the request log of simic serve")
        files = dict[str, pd.DataFrame]()
        unreadable = list[str]()
        for path in sorted(folder.glob("requests-*.parquet")):
            if path.name in without:
                continue
            try:
                files[path.name] = pq.read_table(path).to_pandas()
            except FileNotFoundError:
                # The server has removed it meanwhile.
                continue
            except PermissionError as error:
                raise SimicError(f"{path}: cannot be read: {error.strerror}") from None
            except (pa.ArrowException, OSError):
                unreadable.append(path.name)
        # Other Parquet files of such a name are no log.
        missing = [name for rows in files.values() for name in OWN_COLUMNS if name not in rows]
        if missing:
            raise SimicError(f"{folder}: no column {missing[0]!r}; must be a request log of simic")
        return cls(files, tuple(unreadable))

    @property
    def rows(self) -> Any:
        """Join the rows of all files."""
        # Without rows a part has no types, which would become those of the whole.
        parts = [rows for rows in self.files.values() if len(rows)]
        empty = pd.DataFrame(columns=list(OWN_COLUMNS))
        return pd.concat(parts, ignore_index=True) if parts else empty


def as_classes(values: Any, classes: Sequence[str]) -> Any:
    """Write labels as the classes that they are: 1.0 is the class 1. What is no class stays as it is."""
    text = predict.as_text(values)
    places = predict.level_places(text, classes)
    is_class = places < len(classes)
    text[is_class] = [classes[int(place)] for place in places[is_class]]
    return text


def labelled(rows: Any, path: Path, terms: Contract) -> pd.DataFrame:
    """Take the rows that have a label, in order of time, with it as the column ``ANSWER``.

    Args:
        rows: Of the request log.
        path: A table with the columns ``request``, as in the log, and the label.
        terms: Say the name of that column, and the classes.

    Raises:
        SimicError: The table cannot be read or lacks a column.
    """
    try:
        table, _ = predict.read_table(path, most_bytes())
    except (OSError, ValueError) as error:
        raise SimicError(f"{path}: cannot be read: {error}") from None
    label = terms.label
    # Whoever labels may have more columns than these.
    if missing := [name for name in (REQUEST, label) if name not in table]:
        raise SimicError(
            f"{path}: no column {missing[0]!r}: must have the columns {REQUEST} and {label}"
        )
    answers: Any = pd.DataFrame(
        {
            REQUEST: predict.as_text(table[REQUEST]),
            ANSWER: as_classes(table[label], terms.classes),
        }
    )
    # A label that was corrected counts as it is now.
    answers = answers.dropna().drop_duplicates(REQUEST, keep="last")
    return rows.sort_values(TIME, kind="stable").merge(answers, on=REQUEST)


def features(rows: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Take the columns of a network by their names in the log; empty where no request had one."""
    names_there = {logged_name(name): name for name in names}
    return rows.reindex(columns=[*names_there]).rename(columns=names_there)
