"""Describe a table's columns, and turn labels into numbers 0…classes-1."""

import datetime
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from simic.data.own import predict
from simic.data.raw_inputs import InputColumn
from simic.errors import SimicError

# Levels of one column that get a feature; the rarer ones are joined.
MOST_LEVELS = 20
# Training rows that a level with a feature needs, in number and as a share; ours.
LEAST_ROWS = 3
LEAST_SHARE = 0.01
MOST_CLASSES = 1000
# Columns that a message lists.
MOST_SHOWN = 10
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}([T ].*)?")


def describe(frame: pd.DataFrame, train: np.ndarray) -> tuple[tuple[InputColumn, ...], list[str]]:
    """Describe a table's columns as the rows ``train`` show them, and in words what is done to them.

    Raises:
        SimicError: naming a column that cannot be used.
    """
    columns = list[InputColumn]()
    notes = list[str]()
    left_out = list[str]()
    if not frame.columns.is_unique:
        raise SimicError(
            f"column {frame.columns[frame.columns.duplicated()][0]!r}: is there twice; rename one of them"
        )
    for name in frame.columns:
        # Only the training rows say what a column is.
        column = _column(str(name), frame[name], frame[name].iloc[train])
        if column is None:
            left_out.append(str(name))
            continue
        columns.append(column)
        if column.levels is not None:
            joined = ", the rare ones as one" if column.other else ""
            notes.append(
                f"column {column.name!r}: one feature for each of {len(column.levels)} levels{joined}"
            )
        if column.missing:
            filled = "" if column.levels is not None else "; the mean stands in"
            notes.append(f"column {column.name!r}: a feature says where a value is missing{filled}")
    # A table must have something to learn from.
    if not columns:
        raise SimicError(
            "no column is left that could tell classes apart: every one holds one value or one per row"
        )
    if left_out:
        shown = ", ".join(left_out[:MOST_SHOWN]) + (", …" if len(left_out) > MOST_SHOWN else "")
        notes.append(
            f"left out, since all training rows are equal there or each has its own string: {shown}"
        )
    return tuple(columns), notes


def codes(frame: pd.DataFrame, columns: Sequence[InputColumn]) -> np.ndarray:
    """Code a table as ``InputEncoder`` takes it, float64 ``[N, C]``; SimicError naming a column that does not fit."""
    try:
        return predict.codes(frame, [column.model_dump() for column in columns])
    except ValueError as error:
        raise SimicError(str(error)) from None


def _column(name: str, values: Any, train: Any) -> InputColumn | None:
    missing = bool(train.isna().any())
    if is_number(values, name):
        return InputColumn(name=name, missing=missing) if train.nunique(dropna=False) > 1 else None
    # Levels in the order of how often they occur, then by name.
    counts = train.dropna().map(str).value_counts()
    counts = counts.loc[sorted(counts.index, key=lambda level: (-counts[level], level))]
    frequent = counts[counts >= max(LEAST_ROWS, LEAST_SHARE * len(train))][:MOST_LEVELS]
    if frequent.empty or len(counts) + missing < 2:
        return None
    levels = tuple(sorted(frequent.index))
    return InputColumn(name=name, levels=levels, other=len(levels) < len(counts), missing=missing)


def is_number(values: Any, name: str) -> bool:
    """Tell whether a column holds numbers or booleans rather than words; SimicError for dates and nested values."""
    # A date as such says nothing to a network.
    dates = (
        "turn them into numbers that mean something for the answer (year, month, days since an event), or leave the "
        "column out"
    )
    if types.is_datetime64_any_dtype(values) or types.is_timedelta64_dtype(values):
        raise SimicError(f"column {name!r}: holds dates ({values.iloc[0]}): {dates}")
    if types.is_complex_dtype(values):
        raise SimicError(
            f"column {name!r}: complex numbers: must be real numbers, booleans or strings"
        )
    if types.is_numeric_dtype(values) or types.is_bool_dtype(values):
        return True
    # A column without a type of its own is looked at value by value.
    present = values.dropna()
    nested = [
        value
        for value in present
        if not isinstance(value, str | bool | int | float | np.generic | datetime.date)
    ]
    if nested:
        raise SimicError(
            f"column {name!r}: holds {type(nested[0]).__name__}: must be numbers, booleans or strings"
        )
    is_date = [
        isinstance(value, datetime.date) or DATE.fullmatch(str(value).strip()) for value in present
    ]
    if is_date and all(is_date):
        raise SimicError(f"column {name!r}: holds dates ({present.iloc[0]}): {dates}")
    strings = any(isinstance(value, str) for value in present)
    return len(present) == 0 or not (strings or isinstance(values.dtype, pd.CategoricalDtype))


def labels(values: Any, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number labels 0…classes-1, int64, and name the classes in their order: strings, booleans or whole numbers."""
    if values.isna().any():
        raise SimicError(
            f"target {name!r}: {int(values.isna().sum())} rows have no value; leave them out first"
        )
    if types.is_float_dtype(values):
        # Beyond 2^53 float64 skips whole numbers, and int64 would wrap around.
        unusable = values[(values % 1 != 0) | (values.abs() > 2**53)]
        if len(unusable):
            raise SimicError(
                f"target {name!r}: {unusable.iloc[0]} is no class: simic classifies; cut a number "
                "into bands first, for example with pandas.qcut"
            )
        values = values.astype(np.int64)
    # Numbers are named as they are written, all else as text.
    plain = types.is_numeric_dtype(values) or types.is_bool_dtype(values)
    answers = values.to_numpy() if plain else values.map(str).to_numpy(dtype=str)
    classes, places = np.unique(answers, return_inverse=True)
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise SimicError(f"target {name!r}: {len(classes)} class(es): must be 2 to {MOST_CLASSES}")
    return places.astype(np.int64).ravel(), tuple(map(str, classes.tolist()))


TARGETS = ("target", "label", "class", "y")


def split_target(frame: pd.DataFrame, target: str | None, name: str) -> tuple[pd.DataFrame, Any]:
    """Take the column to predict from a table.

    Args:
        frame: the table.
        target: name of that column; None: the only one that is named as targets are.
        name: of the data, for messages.

    Returns:
        The columns to learn from, and the one to predict.
    """
    # The column that the user names, else the only one that is named like a target.
    chosen = [
        column
        for column in frame.columns
        if (str(column).lower() in TARGETS if target is None else str(column) == target)
    ]
    if len(chosen) != 1:
        names = ", ".join(map(str, frame.columns[:20]))
        names += ", …" if len(frame.columns) > 20 else ""
        if target is not None:
            raise SimicError(f"{name}: --target {target}: no such column; there are {names}")
        count = f"{len(chosen)} columns are" if chosen else "no column is"
        raise SimicError(
            f"{name}: {count} named {', '.join(TARGETS)}: say which to predict, --target COLUMN, of {names}"
        )
    return frame.drop(columns=chosen), frame[chosen[0]]
