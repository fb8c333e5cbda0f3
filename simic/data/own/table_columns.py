"""Describe a table's columns, and turn labels into numbers 0…classes-1."""

import datetime
import decimal
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api import types

from simic.data.own import predict
from simic.data.raw_inputs import InputColumn
from simic.errors import SimicError

# Levels of one column that get a feature each; more are rates of the classes.
MOST_LEVELS = 1000
# Levels × classes of a column of rates.
MOST_RATES = 1_000_000
# Training rows that a level with a feature needs; ours.
LEAST_ROWS = 3
MOST_CLASSES = 1000
# Columns, and values of a column, that a message lists.
MOST_SHOWN = 20
MOST_VALUES_SHOWN = 3
# Numbers of a column that also has words: with more different ones it is asked what the words mean.
MOST_CODES = 20
MOSTLY = 0.5
# Rows from which on numbers that count them are no accident.
LEAST_COUNTED = 60
# Numbers that are others where a point stands between thousands.
GROUPED = re.compile(r"[-+]?([1-9]\d{0,2}(\.\d{3})+|\d{1,3})")
CODE = r"0\d+"
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}([T ].*)?")
# Names of columns that count or name rows, and never say anything about them.
ROW_NAMES = re.compile(
    r"(unnamed: \d+|index|idx|row|nr|no\.?|(.*[ _-])?(id|uuid|guid|row_?number))"
)


@dataclass(frozen=True)
class TypedTable:
    """Columns whose type is told from all rows: numbers as float64, words as text, missing values missing."""

    frame: pd.DataFrame
    # By name of a column of numbers: the mark before decimals, and their unit.
    forms: dict[str, tuple[Literal[".", ","], str]]
    notes: list[str]


def typed(frame: pd.DataFrame, words: Collection[str] = (), semicolons: bool = False) -> TypedTable:
    """Tell numbers from words in columns of text, as files have them.

    Args:
        frame: columns of any types; only text is read.
        words: names of columns that are words, whatever they look like.
        semicolons: these separate columns, as where commas stand before decimals.

    Raises:
        SimicError: naming a column that is mostly numbers.
    """
    frame = frame.reset_index(drop=True)
    if absent := sorted(set(words) - set(frame.columns)):
        raise SimicError(
            f"--words {absent[0]}: no such column; there are {listed([*map(str, frame.columns)])}"
        )
    readings = dict[str, tuple[_Reading, Any]]()
    for name, values in frame.items():
        if str(name) not in words and not is_typed(values):
            refuse_dates(values, str(name))
            text = predict.as_text(values)
            readings[str(name)] = (_read(text), text)
    # Files are of one mind about what stands before decimals.
    commas = any(reading.marks == (",",) for reading, _ in readings.values())
    forms: dict[str, tuple[Literal[".", ","], str]] = {}
    notes = list[str]()
    columns = dict[str, Any]()
    for name, values in frame.items():
        reading, text = readings.get(str(name), (None, None))
        if reading is None:
            columns[str(name)] = predict.as_text(values) if str(name) in words else values
            continue
        if not reading.marks:
            columns[str(name)] = text
            notes += _note_of_words(str(name), reading)
            continue
        mark = _mark(reading, commas or (semicolons and "," in reading.ambiguous))
        forms[str(name)] = (mark, reading.unit)
        columns[str(name)] = _numbers(text, str(name), mark, reading.unit)
        notes += _notes_of_numbers(str(name), reading, mark)
    return TypedTable(pd.DataFrame(columns), forms, notes)


def is_typed(values: Any) -> bool:
    """Tell whether a column says itself what it holds: numbers, booleans, dates, or a pandas categorical."""
    return not isinstance(values.dtype, pd.StringDtype) and not types.is_object_dtype(values)


@dataclass(frozen=True)
class _Reading:
    """How a column of text can be read: with which marks before decimals, if all of it is numbers."""

    marks: tuple[Literal[".", ","], ...]
    unit: str = ""
    # Words that stand for no number.
    missing: tuple[str, ...] = ()
    # A value that is another number with the other mark.
    ambiguous: str = ""
    # Of words: values that are numbers, and the share of rows that has them.
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    share: float = 0.0


def _read(text: Any) -> _Reading:
    """Find how a column of text can be read."""
    counts = text.value_counts()
    values = [str(value) for value in counts.index]
    missing = tuple(value for value in values if value.lower() in predict.NO_NUMBER)
    present = [value for value in values if value.lower() not in predict.NO_NUMBER]
    # Most numbers are plain, and parsed at once; they may have thousands of another country.
    plain: Any = pd.to_numeric(pd.Series(present, dtype=str), errors="coerce")
    if plain.notna().all() and not (present and all(map(GROUPED.fullmatch, present))):
        return _Reading((".",), missing=missing)
    parsed = {
        mark: {value: predict.parse_number(value, mark) for value in present}
        for mark in predict.NUMBERS
    }
    units = {mark: {number[1] for number in of.values() if number} for mark, of in parsed.items()}
    marks: Any = tuple(
        mark for mark, of in parsed.items() if all(of.values()) and len(units[mark]) == 1
    )
    if marks:
        ambiguous = [value for value in present if parsed["."][value] != parsed[","][value]]
        return _Reading(
            marks,
            unit=units[marks[0]].pop(),
            missing=missing,
            ambiguous=ambiguous[0] if ambiguous and len(marks) > 1 else "",
        )
    best = max(parsed.values(), key=lambda of: sum(map(bool, of.values())))
    numbers = [value for value in present if best[value]]
    return _Reading(
        (),
        missing=missing,
        numbers=tuple(numbers),
        words=tuple(value for value in present if not best[value]),
        share=float(counts[numbers].sum() / counts[present].sum()),
    )


def _numbers(text: Any, name: str, mark: str, unit: str) -> pd.Series:
    try:
        return pd.Series(predict.numbers(text, name, mark, unit))
    except ValueError as error:
        raise SimicError(str(error)) from None


def _mark(reading: _Reading, commas: bool) -> Literal[".", ","]:
    """Choose the mark before decimals; where both would do, that of the file."""
    return reading.marks[-1 if commas else 0]


def _notes_of_numbers(name: str, reading: _Reading, mark: Literal[".", ","]) -> list[str]:
    notes = list[str]()
    if reading.ambiguous:
        number = predict.parse_number(reading.ambiguous, mark)
        other = predict.parse_number(reading.ambiguous, "," if mark == "." else ".")
        assert number is not None and other is not None
        notes.append(
            f"column {name!r}: {reading.ambiguous!r} is read as {number[0]:.12g}; if it is {other[0]:.12g}, write it "
            "without separators of thousands and with a point before decimals"
        )
    elif reading.marks == (",",):
        notes.append(f"column {name!r}: numbers with a comma before decimals")
    if reading.unit:
        notes.append(f"column {name!r}: numbers in {reading.unit!r}")
    if reading.missing:
        notes.append(
            f"column {name!r}: {_quoted(reading.missing)} among numbers is read as no value"
        )
    return notes


def _note_of_words(name: str, reading: _Reading) -> list[str]:
    """Say what is read as words though it may be no word; SimicError where most of a column is numbers."""
    notes = list[str]()
    if reading.numbers:
        why = (
            f"{_quoted(reading.words)} is no number"
            if reading.words
            else f"units differ, as in {_quoted(reading.numbers)}"
        )
        if len(reading.numbers) > MOST_CODES and reading.share > MOSTLY:
            raise SimicError(
                f"column {name!r}: {100 * reading.share:.0f} % are numbers, but {why}: leave such values empty if they "
                f"stand for none; if all are words or codes, --words {name}"
            )
        notes.append(f"column {name!r}: read as words, since {why}")
    if reading.missing:
        notes.append(
            f"column {name!r}: {_quoted(reading.missing)} among words is a word too, not a missing value"
        )
    return notes


def _quoted(values: Sequence[str]) -> str:
    return ", ".join(map(repr, values[:MOST_VALUES_SHOWN])) + ", …" * (
        len(values) > MOST_VALUES_SHOWN
    )


def listed(names: Sequence[str]) -> str:
    """Join names for a message, which shows the first ones."""
    return ", ".join(map(str, names[:MOST_SHOWN])) + ", …" * (len(names) > MOST_SHOWN)


def describe(
    table: TypedTable, train: np.ndarray, classes: int
) -> tuple[tuple[InputColumn, ...], list[str]]:
    """Describe a table's columns as the rows ``train`` show them, and in words what is done to them.

    Raises:
        SimicError: naming a column that cannot be used.
    """
    frame = table.frame
    columns = list[InputColumn]()
    notes = list[str]()
    left_out: dict[str, list[str]] = {}
    for name in frame.columns:
        # Only the training rows say what a column is, but all say whether it counts them.
        values: Any = frame[name]
        reason = _emptiness(str(name), values, values.iloc[train])
        if reason:
            left_out.setdefault(reason, []).append(str(name))
            continue
        mark, unit = table.forms.get(str(name), (".", ""))
        column = _column(str(name), values, values.iloc[train], classes).model_copy(
            update={"mark": mark, "unit": unit}
        )
        columns.append(column)
        joined = ", the rare ones as one" if column.other else ""
        if is_rated(column):
            notes.append(
                f"column {column.name!r}: {len(column.levels or ())} levels{joined}: rates of the classes stand for "
                "them, of a training row those in other rows"
            )
            continue
        if column.levels is not None:
            notes.append(
                f"column {column.name!r}: one feature for each of {len(column.levels)} levels{joined}"
            )
        if column.missing:
            filled = "" if column.levels is not None else "; the mean stands in"
            notes.append(f"column {column.name!r}: a feature says where a value is missing{filled}")
    # A table must have something to learn from.
    reasons = [f"left out, since {reason}: {listed(names)}" for reason, names in left_out.items()]
    if not columns:
        raise SimicError(f"no column is left that could tell classes apart; {'; '.join(reasons)}")
    return tuple(columns), [*notes, *reasons]


def codes(frame: pd.DataFrame, columns: Sequence[InputColumn]) -> np.ndarray:
    """Code a table as ``InputEncoder`` takes it, float64 ``[N, C]``; SimicError naming a column that does not fit."""
    try:
        return predict.codes(frame, [column.model_dump() for column in columns])
    except ValueError as error:
        raise SimicError(str(error)) from None


def _emptiness(name: str, values: Any, train: Any) -> str:
    """Say why a column can teach nothing; empty where it may."""
    if train.nunique(dropna=False) < 2:
        return "all training rows are equal there"
    counts = train.value_counts()
    if not is_number(values, name):
        rare = counts.max() < LEAST_ROWS
        return f"no text there is in {LEAST_ROWS} training rows" if rare else ""
    # Numbers of rows tell how a file is sorted, and nothing of rows to come.
    if len(values) < LEAST_COUNTED or not values.is_unique or values.isna().any():
        return ""
    steps = np.unique(np.diff(values.to_numpy(dtype=np.float64)))
    whole = bool((values % 1 == 0).all()) if not types.is_bool_dtype(values) else False
    if whole and len(steps) == 1:
        return "it counts the rows"
    return "it names each row" if whole and ROW_NAMES.fullmatch(name.lower()) else ""


def is_rated(column: InputColumn) -> bool:
    """Tell whether a column has so many levels that they become rates of the classes."""
    return column.levels is not None and len(column.levels) > MOST_LEVELS


def _column(name: str, values: Any, train: Any, classes: int) -> InputColumn:
    missing = bool(train.isna().any())
    if is_number(values, name):
        return InputColumn(name=name, missing=missing)
    # Levels in the order of how often they occur, then by name.
    counts = predict.as_text(train).value_counts()
    counts = counts.loc[sorted(counts.index, key=lambda level: (-counts[level], level))]
    frequent = counts[counts >= LEAST_ROWS][: max(MOST_LEVELS, MOST_RATES // classes)]
    levels = tuple(sorted(frequent.index))
    return InputColumn(name=name, levels=levels, other=len(levels) < len(counts), missing=missing)


def is_number(values: Any, name: str) -> bool:
    """Tell whether a column that is typed holds numbers or booleans; SimicError for dates and nested values."""
    refuse_dates(values, name)
    return types.is_numeric_dtype(values) or types.is_bool_dtype(values)


def refuse_dates(values: Any, name: str) -> None:
    """Raise SimicError where a column holds dates or nested values, of which a network can make nothing."""
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
        return
    # A column without a type of its own is looked at value by value.
    present = (
        values.dropna().unique() if isinstance(values.dtype, pd.StringDtype) else values.dropna()
    )
    nested = [
        value
        for value in present
        if not isinstance(
            value, str | bool | int | float | decimal.Decimal | np.generic | datetime.date
        )
    ]
    if nested:
        raise SimicError(
            f"column {name!r}: holds {type(nested[0]).__name__}: must be numbers, booleans or strings"
        )
    is_date = [
        isinstance(value, datetime.date) or DATE.fullmatch(str(value).strip())
        for value in present
        if value != ""
    ]
    if is_date and all(is_date):
        raise SimicError(f"column {name!r}: holds dates ({present[0]}): {dates}")


def labels(values: Any, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number labels 0…classes-1, int64, and name the classes in their order: strings, booleans or whole numbers."""
    values = _answers(values, name)
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


def _answers(values: Any, name: str) -> Any:
    """Take numbers, booleans or words, of which none is missing; text of numbers alone is numbers."""
    untyped = not is_typed(values)
    if untyped:
        refuse_dates(values, name)
        values = predict.as_text(values)
    if values.isna().any():
        raise SimicError(
            f"target {name!r}: {int(values.isna().sum())} rows have no value; leave them out first"
        )
    if not untyped:
        return values
    reading = _read(values)
    # Codes such as 007 are names.
    if (
        not reading.marks
        or values.str.fullmatch(CODE).any()
        or values.str.lower().isin(predict.TRUTH).all()
    ):
        return values
    if reading.missing:
        raise SimicError(
            f"target {name!r}: classes are numbers, and {_quoted(reading.missing)}: a class or no answer? Leave such "
            "rows out, or give the class another name"
        )
    if reading.unit:
        return values
    return _numbers(values, name, reading.marks[0], "")


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
    names = [predict.plain_name(column) for column in frame.columns]
    chosen = [
        column
        for column, plain in zip(frame.columns, names, strict=True)
        if (plain.lower() in TARGETS if target is None else plain == predict.plain_name(target))
    ]
    if len(chosen) != 1:
        if target is not None:
            count = "no such column" if not chosen else "several columns of that name"
            raise SimicError(f"{name}: --target {target}: {count}; there are {listed(names)}")
        count = f"{len(chosen)} columns are" if chosen else "no column is"
        raise SimicError(
            f"{name}: {count} named {', '.join(TARGETS)}: say which to predict, --target COLUMN, of {listed(names)}"
        )
    return frame.drop(columns=chosen), frame[chosen[0]]
