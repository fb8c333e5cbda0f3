"""Predict with the network in this folder: ``python predict.py DATA`` prints a class for each row or image.

DATA is what the network was grown on, or more of it: a table (.csv, .tsv, also .gz, .parquet, .feather, .arrow; a
column with the answers is not needed), arrays (.npy, or x of an .npz), an image, a folder of images, a folder of
Hugging Face's. ``--probabilities`` adds a column for each class. Needs torch and pandas; images need pillow, Arrow and
Parquet pyarrow. simic reads what it trains on with the functions of this file.
"""

import codecs
import csv
import gzip
import io
import itertools
import json
import os
import re
import stat
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.api import types

TABLES = (".csv", ".tsv", ".parquet", ".feather", ".arrow", ".ipc")
# How often a file is held in memory at least, while it is read.
COPIES = 4
CONTRACT = "contract.json"
MOST_CONTRACT_BYTES = 2**26

# --- files -----------------------------------------------------------------------------------------------------------

GZIP = b"\x1f\x8b"
PIECE = 2**20


def most_bytes() -> int:
    """Compute how many bytes of data fit into this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // COPIES


def read_bytes(path: Path, most: int) -> bytes:
    """Read a regular file, unpacked where it is gzip; ValueError where it is none, or has more than ``most`` bytes."""
    # Asked before it is opened: a pipe would be waited for, a device never ends.
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: must be a regular file, no directory, pipe or device")
    refuse_more(path, status.st_size, most)
    content = path.read_bytes()
    if not content.startswith(GZIP):
        return content
    try:
        with gzip.open(io.BytesIO(content)) as file:
            # Counted before it is kept: some bytes may unpack to a thousand times as many.
            size = 0
            while piece := file.read(PIECE):
                size += len(piece)
                refuse_more(path, size, most)
            file.seek(0)
            return file.read()
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file: {error}") from None


def refuse_more(path: Path | str, size: int, most: int) -> None:
    """Raise ValueError where data of this size do not fit."""
    if size > most:
        raise ValueError(
            f"{path}: {size / 1e9:.1f} GB, and there is room for {most / 1e9:.1f} GB: must be smaller"
        )


# --- tables ----------------------------------------------------------------------------------------------------------

ARROW = (".parquet", ".arrow", ".ipc", ".feather")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MOST_LINE_BYTES = 2**24
# All values as text, also empty ones; the line of names is read apart.
AS_IS: Any = {"header": 0, "index_col": False, "dtype": str, "na_filter": False}
# Lines that tell how a text table is separated.
LINES = 50
# Longer ones first: that of UTF-16 begins that of UTF-32.
MARKS_OF_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def read_table(path: Path, most: int) -> tuple[pd.DataFrame, list[str]]:
    """Read a table by the ending of its name, with notes on how; all values of a text table are text, empty ones too.

    ValueError where the file does not say which value belongs to which column.
    """
    content = read_bytes(path, most)
    if path.suffix.lower() in ARROW:
        return arrow_frame(content, most), []
    _refuse_long_lines(content)
    encoding = encoding_of(content)
    with io.TextIOWrapper(io.BytesIO(content), encoding, newline="") as lines:
        above, separator, notes = _layout(lines)
    with io.TextIOWrapper(io.BytesIO(content), encoding, newline="") as lines:
        names, longest = _widths(itertools.islice(lines, above, None), separator, above)
    if longest > len(names):
        notes.append("rows end in a separator: the column without name and values is left out")
    columns = [name or f"Unnamed: {place}" for place, name in enumerate(names)]
    for name in pd.Index(columns)[pd.Index(columns).duplicated()]:
        raise ValueError(f"column {name!r}: is there twice; rename one of them")
    # As text: what is a number, a word or missing is told from whole columns.
    padded = columns + [f"beyond {place}" for place in range(len(names), longest)]
    frame: Any = pd.read_csv(
        io.BytesIO(content), sep=separator, encoding=encoding, skiprows=above, names=padded, **AS_IS
    )
    frame = frame[columns]
    if names[-1] == "" and (frame.iloc[:, -1] == "").all():
        frame = frame.iloc[:, :-1]
    repeats = frame == names[: frame.shape[1]]
    if repeats.all(axis=1).any():
        raise ValueError("the line of names is there again among the rows: leave it out")
    # Without a line of names the first row would be taken for them. Arrays have 0, 1, 2, … as names.
    is_value = [
        parse_number(name, ".") is not None or repeat
        for name, repeat in zip(columns, repeats.any(), strict=False)
    ]
    if all(is_value) and columns != [*map(str, range(len(columns)))]:
        raise ValueError(f"the first line has values ({columns[0]}, …): must have names of columns")
    return frame, notes


def _refuse_long_lines(content: bytes) -> None:
    """Raise ValueError where a line has no end: what looks for one would hold all of it, again and again."""
    lines = io.BytesIO(content)
    while line := lines.readline(MOST_LINE_BYTES + 1):
        if len(line) > MOST_LINE_BYTES:
            raise ValueError(f"a line has more than {MOST_LINE_BYTES} bytes: must be a table")


def encoding_of(content: bytes) -> str:
    """Tell the encoding of a text by its first bytes; ValueError with a way out where that is not certain."""
    marked = (mark for mark in MARKS_OF_ENCODINGS if content.startswith(mark))
    encoding = MARKS_OF_ENCODINGS.get(next(marked, b""), "utf-8")
    try:
        content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"not UTF-8 text: line {line} has the byte 0x{content[error.start]:02x}; save it as CSV UTF-8, or convert "
            "it by its encoding, for example iconv -f WINDOWS-1252 -t UTF-8"
        ) from None
    if encoding == "utf-8" and b"\0" in content:
        raise ValueError("not UTF-8 text: has NUL bytes; save it as CSV UTF-8")
    return encoding


def _layout(lines: Iterable[str]) -> tuple[int, str, list[str]]:
    """Find how many lines stand above the names, and what separates columns, with notes."""
    first = list(itertools.islice(lines, LINES))
    above = 0
    notes = list[str]()
    separator = ""
    # Spreadsheets write sep=; above, other programs comments.
    while above < len(first) - 1 and (
        not first[above].strip()
        or first[above].startswith("#")
        or re.match("sep=.$", first[above].strip())
    ):
        if first[above].startswith("#"):
            notes.append(f"the comment above the names is left out: {first[above].strip()[:60]}")
        if first[above].startswith("sep="):
            separator = first[above][4]
        above += 1
    body = first[above:]
    if not body or not body[0].strip():
        raise ValueError("holds no samples: there are no names of columns")
    if not separator:
        separator = _separator(body)
    # The names themselves may be the comment.
    if notes and len(_row(first[above - 1], separator)) == len(_row(body[0], separator)) > 1:
        raise ValueError(
            f"line {above} begins with # and has as many values as there are columns: names or a comment? Leave out "
            "the # or the line"
        )
    if separator != ("\t" if "\t" in body[0] else ","):
        notes.append(f"columns are separated by {SEPARATORS.get(separator, repr(separator))}")
    return above, separator, notes


def _separator(lines: Sequence[str]) -> str:
    """Find what separates columns; ValueError where two would do."""
    names = dict[str, int]()
    consistent = list[str]()
    for separator in SEPARATORS:
        widths = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
        names[separator] = widths[0]
        # The last of many rows that are looked at may be cut within a value.
        rows = widths[:-1] if len(lines) > LINES // 2 else widths
        if widths[0] > 1 and len(set(rows)) == 1:
            consistent.append(separator)
    if len(consistent) > 1:
        choices = " or ".join(SEPARATORS[separator] for separator in consistent)
        raise ValueError(
            f"columns may be separated by {choices}: quote the names and values that hold one of them"
        )
    return consistent[0] if consistent else max(names, key=lambda separator: names[separator])


def _row(line: str, separator: str) -> list[str]:
    return next(csv.reader([line.lstrip("#")], delimiter=separator), [])


def _widths(lines: Iterator[str], separator: str, above: int) -> tuple[list[str], int]:
    """Read the names, and find the width of the widest row; ValueError where a row has another number of values."""
    rows = csv.reader(lines, delimiter=separator)
    try:
        # Names that differ by a space or by how a letter is composed are one.
        names = [plain_name(name) for name in next(rows)]
        longest = len(names)
        for row in rows:
            values = len(row)
            # Rows may end in a separator.
            if values > len(names) and not any(row[len(names) :]):
                longest = max(longest, values)
                values = len(names)
            if row and values != len(names):
                raise ValueError(
                    f"line {above + rows.line_num} has {len(row)} values, and there are {len(names)} names of columns: "
                    "must be as many; quote values that hold the separator"
                )
    except csv.Error as error:
        raise ValueError(f"line {above + rows.line_num}: {error}") from None
    return names, longest


def plain_name(name: Any) -> str:
    """Name a column without what cannot be seen: spaces around, and how accents are composed."""
    return unicodedata.normalize("NFC", str(name)).strip()


def arrow_frame(content: bytes, most: int) -> pd.DataFrame:
    """Read a Parquet or Feather file, or an Arrow file or stream; ArrowInvalid, a ValueError, where it is damaged."""
    # Only these files need it.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.feather  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415

    # No memory map: a file that ends too early would end the process.
    source = pa.BufferReader(content)
    if content.startswith(b"PAR1"):
        file = pyarrow.parquet.ParquetFile(source)
        metadata = file.metadata
        groups = [metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups)]
        # A value that repeats takes no room in the file.
        refuse_more("a table", max(sum(groups), 8 * metadata.num_rows * metadata.num_columns), most)
        table = file.read()
    elif content.startswith(b"FEA1"):
        table = pyarrow.feather.read_table(source)
    else:
        is_file = content.startswith(b"ARROW1")
        reader: Any = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        size = 0
        parts = list[Any]()
        for batch in batches:
            size += max(batch.nbytes, 8 * batch.num_rows * batch.num_columns)
            refuse_more("a table", size, most)
            parts.append(batch)
        table = pa.Table.from_batches(parts, reader.schema)
    # Offsets that lead outside of a buffer would end the process too.
    table.validate(full=True)
    # Numbers with fixed decimals are numbers, though pandas makes objects of them.
    fields = [
        field.with_type(pa.float64()) if pa.types.is_decimal(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields, table.schema.metadata)).to_pandas()


def read_hugging_face(folder: Path, most: int) -> tuple[list[pd.DataFrame], list[str]]:
    """Read the splits that Hugging Face's ``save_to_disk`` wrote, and their names."""
    splits = folder / "dataset_dict.json"
    names = _json(splits)["splits"] if splits.exists() else ["."]
    frames = list[pd.DataFrame]()
    for name in names:
        part = folder / name
        # The description of a split knows the names of its classes.
        features = _json(part / "dataset_info.json").get("features") or {}
        tables = list[pd.DataFrame]()
        for entry in _json(part / "state.json")["_data_files"]:
            file = part / entry["filename"]
            if not file.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{part / 'state.json'}: names {file}: must lie in the folder")
            tables.append(arrow_frame(read_bytes(file, most), most))
        frame = pd.concat(tables, ignore_index=True)
        for column, feature in features.items():
            if isinstance(feature, dict) and feature.get("names") and column in frame:
                classes: Any = dict(enumerate(feature["names"]))
                frame[column] = frame[column].map(classes)
        frames.append(frame)
    return frames, names


def _json(path: Path, most: int = PIECE) -> dict[str, Any]:
    try:
        content = json.loads(read_bytes(path, most))
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(f"{path}: damaged: must be JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: damaged: must be a JSON object")
    return content


# --- values ----------------------------------------------------------------------------------------------------------

# Among numbers these say that there is none.
NO_NUMBER = frozenset(
    "? - -- – — . .. na n/a n.a. <na> nan -nan null none nil missing unknown "  # noqa: SIM905
    "#n/a #value! #div/0! #ref! #null! #num!".split()
)
CURRENCIES = "$€£¥₹₽₩₺₫₴₦₱฿¢"
# The mark before decimals: what may stand between groups of digits.
BETWEEN_THOUSANDS = {".": ",'’ \u00a0\u2009\u202f_", ",": ".'’ \u00a0\u2009\u202f_"}
# Hundreds are grouped too in India.
NUMBERS = {
    mark: re.compile(
        rf"(?P<sign>[-+]?)(?P<before>[{CURRENCIES}]?) ?(?P<inner>[-+]?)"
        rf"(?P<whole>[1-9]\d{{0,2}}(?:(?P<gap>[{gaps}])\d{{2,3}})*(?:[{gaps}]\d{{3}})|\d*)"
        rf"(?:{re.escape(mark)}(?P<part>\d*))?(?P<power>[eE][-+]?\d+)?"
        rf"\s*(?P<after>[^\W\d_][^\d]{{0,9}}|[%‰°{CURRENCIES}][^\d]{{0,9}})?"
    )
    for mark, gaps in BETWEEN_THOUSANDS.items()
}
TRUTH = {"true": 1.0, "false": 0.0}
# Of structure.json and contract.json.
Columns = Sequence[Mapping[str, Any]]
# How many values of a column are missing, an unseen level or out of range.
Counts = list[tuple[str, str, int]]


def parse_number(text: str, mark: str) -> tuple[float, str] | None:
    """Parse a number with this mark before its decimals, and its unit or currency; None for any other text."""
    if text.lower() in TRUTH:
        return TRUTH[text.lower()], ""
    plain = text.replace("\u2212", "-")
    # Accounts put what is negative into brackets.
    plain = f"-{plain[1:-1]}" if plain[:1] + plain[-1:] == "()" else plain
    match = NUMBERS[mark].fullmatch(plain)
    if match is None or not (match["whole"] or match["part"]) or (match["sign"] and match["inner"]):
        return None
    digits = "".join(digit for digit in match["whole"] if digit.isdecimal())
    sign = match["sign"] or match["inner"]
    number = float(f"{sign}{digits or 0}.{match['part'] or 0}{match['power'] or ''}")
    return number, match["before"] + (match["after"] or "")


def as_text(values: Any) -> Any:
    """Write values as text without spaces around; whole numbers without decimals; empty ones are missing."""
    if not isinstance(values.dtype, pd.StringDtype):
        values = values.astype(object)
        values = values.map(
            lambda value: (
                str(int(value)) if isinstance(value, float) and value.is_integer() else value
            ),
            na_action="ignore",
        )
        values = values.map(str, na_action="ignore").astype("str")
    stripped = values.str.strip()
    return stripped.mask(stripped == "")


def numbers(values: Any, name: str, mark: str = ".", unit: str = "") -> np.ndarray:
    """Convert a column to float64, NaN where a value is missing; ValueError naming one that is no finite number.

    Of text, ``mark`` stands before decimals, and ``unit`` may stand before or after a number.
    """
    if types.is_numeric_dtype(values) or types.is_bool_dtype(values):
        floats = values.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        floats = _parsed(as_text(values), name, mark, unit)
    if np.isinf(floats).any():
        row = int(np.isinf(floats).argmax())
        raise ValueError(
            f"column {name!r}: infinite or beyond float64 in row {row}: must be finite or missing"
        )
    return floats


def _parsed(text: Any, name: str, mark: str, unit: str) -> np.ndarray:
    # Plain numbers, which most are, are parsed at once.
    plain = text if mark == "." else text.mask(text.str.contains(".", regex=False, na=False))
    parsed: Any = pd.to_numeric(plain, errors="coerce")
    floats = parsed.to_numpy(dtype=np.float64, na_value=np.nan).copy()
    rest = text[np.isnan(floats) & text.notna().to_numpy()]
    special = dict[str, float]()
    for value in rest.unique():
        if value.lower() in NO_NUMBER:
            special[value] = np.nan
            continue
        number = parse_number(value, mark)
        if number is None or number[1] not in ("", unit):
            form = "with a comma before decimals" if mark == "," else "with a point before decimals"
            kind = f"in {unit!r}, {form}" if unit else form
            raise ValueError(
                f"column {name!r}: {value!r} is no number: must be numbers {kind}, as in training"
            )
        special[value] = number[0]
    floats[text.index.get_indexer(rest.index)] = rest.map(special).to_numpy(dtype=np.float64)
    return floats


def codes(frame: pd.DataFrame, columns: Columns) -> np.ndarray:
    """Code a table as float64 ``[N, C]``: numbers as they are, of strings the place of their level, one that is new as
    one past the last; NaN where a value is missing. ValueError naming what does not fit.
    """
    coded = np.empty((len(frame), len(columns)))
    for number, values in enumerate(named_columns(frame, columns)):
        column = columns[number]
        if column["levels"] is None:
            coded[:, number] = numbers(values, column["name"], column["mark"], column["unit"])
        else:
            coded[:, number] = level_places(as_text(values), column["levels"])
    return coded


def named_columns(frame: pd.DataFrame, columns: Columns) -> list[Any]:
    """Find columns by name, whatever their order and the spaces around it; ValueError naming one that is missing."""
    named = [(str(name), values) for name, values in frame.reset_index(drop=True).items()]
    by_name: dict[str, Any] = {plain_name(name): values for name, values in named} | dict(named)
    series = list[Any]()
    for name in (column["name"] for column in columns):
        values = by_name.get(name, by_name.get(plain_name(name)))
        if values is None:
            names = ", ".join(name for name, _ in named[:20])
            raise ValueError(f"column {name!r}: not in the data; there are {names}")
        series.append(values)
    return series


def check(frame: pd.DataFrame, columns: Columns, contract: Any) -> tuple[np.ndarray, Counts]:
    """Code a table as ``codes`` does, and compare it with what the network learned from.

    Args:
        frame: Rows as they come; the column with the answers and those that training left out may be there.
        columns: Those of the network.
        contract: What ``contract.json`` says; None where there is none, and nothing is counted.

    Returns:
        The codes ``[N, C]``, and counts that are not 0.

    Raises:
        ValueError: Names a column that is missing, unknown, or does not fit.
    """
    if contract is None:
        return codes(frame, columns), []
    terms = contract["columns"]
    known = [*(column["name"] for column in terms), *contract["ignored"], contract["label"]]
    if unknown := {*map(plain_name, frame.columns)} - {*map(plain_name, known)}:
        names = ", ".join(known[:20])
        raise ValueError(f"column {min(unknown)!r}: was not in training; there were {names}")
    coded = codes(frame, columns)
    counts: Counts = []
    for place, column in enumerate(terms):
        values = coded[:, place]
        if column["levels"] is None:
            kind = "out of range"
            outside = (values < column["low"]) | (values > column["high"])
        else:
            # One past the last are new levels, and those that were too rare to have a feature.
            kind = "unseen level"
            outside = values == len(columns[place]["levels"])
            if outside.any() and columns[place]["other"]:
                hits: Any = frame[outside]
                text = as_text(named_columns(hits, [column])[0])
                outside = level_places(text, column["levels"]) == len(column["levels"])
        amounts = {kind: outside.sum(), "missing": np.isnan(values).sum()}
        counts += [(column["name"], what, int(rows)) for what, rows in amounts.items() if rows]
    return coded, counts


def read_contract(folder: Path) -> dict[str, Any] | None:
    """Read the contract beside a network; None where it has none, as those of images."""
    path = folder / CONTRACT
    return _json(path, MOST_CONTRACT_BYTES) if path.exists() else None


def level_places(text: Any, levels: Sequence[str]) -> np.ndarray:
    """Find the place of each value among levels; codes read as numbers (1.0) are the levels they were (1)."""
    by_text = {level: float(place) for place, level in enumerate(levels)}
    by_number = {_as_float(level): place for level, place in by_text.items()}
    # A level that training did not have is one past the last, as is any text that is no number.
    by_number[None] = float(len(levels))
    places = {
        value: by_text.get(value, by_number.get(_as_float(value), float(len(levels))))
        for value in text.dropna().unique()
    }
    return text.map(places).to_numpy(dtype=np.float64, na_value=np.nan)


def _as_float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?\d+(\.\d*)?", text) else None


# --- images ----------------------------------------------------------------------------------------------------------

IMAGES = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp")
# No others are opened: a file's name says nothing, and some formats are programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
# Pillow's names for pixels of more than 8 bits.
DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
# Stored on its side, as cameras do.
SIDEWAYS = range(5, 9)
ORIENTATION = 0x0112
BYTES_A_PIXEL = 4
OPAQUE = 255


def image_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """List the images below a folder in order, and other files; what a computer adds by itself is skipped."""
    files = [
        file
        for file in sorted(folder.rglob("*"))
        if not file.is_dir() and not any(map(is_hidden, file.relative_to(folder).parts))
    ]
    images = [file for file in files if file.suffix.lower() in IMAGES]
    return images, [file for file in files if file.suffix.lower() not in IMAGES]


def is_hidden(name: str) -> bool:
    """Tell names of what computers add to folders and archives by themselves."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def read_images(
    images: Sequence[Any], most: int, mode: str | None = None
) -> tuple[np.ndarray, str]:
    """Read images of one size, turned upright: uint8 ``[N, H, W]`` where all are grey, else ``[N, H, W, C]``, where C
    is 4 if any is transparent; numbers of more bits as they are.

    Args:
        images: paths of files, or bytes.
        most: bytes that all may have.
        mode: Pillow's name for the pixels; null: the one that keeps what these images have.

    Returns:
        The images, and their mode.

    Raises:
        ValueError: naming the file that does not fit.
    """
    # What they are, before their pixels are unpacked.
    forms = [_on_image(image, _form, most) for image in images]
    size = forms[0][1]
    for image, (_, (width, height)) in zip(images, forms, strict=True):
        if (width, height) != size:
            raise ValueError(
                f"images of {size[0]} × {size[1]} and {width} × {height} pixels (the latter: {_place(image)}): must be "
                "of one size; resize them first"
            )
    refuse_more("images", len(images) * size[0] * size[1] * BYTES_A_PIXEL, most)
    kinds = {kind for kind, _ in forms}
    depths = kinds | ({mode} if mode else set[str]())
    if len(depths) > 1 and depths & set(DEEP):
        raise ValueError(
            f"images of pixels {' and '.join(sorted(depths))}: must all have as many bits; convert them first"
        )
    if mode not in (None, "RGBA") and "RGBA" in kinds:
        raise ValueError(
            "is transparent, which no image of training was: fill its background first"
        )
    target = mode or ("RGBA" if "RGBA" in kinds else "RGB" if "RGB" in kinds else min(kinds))
    return np.stack(
        [_on_image(image, partial(_pixels, mode=target), most) for image in images]
    ), target


def _on_image(image: Any, function: Callable[[Any], Any], most: int) -> Any:
    """Call a function with the opened image; ValueError that names the file where it is damaged."""
    from PIL import Image  # noqa: PLC0415 - only images need it

    content = image if isinstance(image, bytes) else read_bytes(image, most)
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            refuse_more(_place(image), opened.width * opened.height * BYTES_A_PIXEL, most)
            return function(opened)
    # Damaged images end in errors of many kinds.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if reason.startswith("cannot identify"):
            reason = f"damaged, or no image of {', '.join(FORMATS)}"
        raise ValueError(f"{_place(image)}: {reason}") from error


def _place(image: Any) -> str:
    return "an image in the table" if isinstance(image, bytes) else str(image)


def _form(image: Any) -> tuple[str, tuple[int, int]]:
    """Tell which mode keeps all that an image has, and its size when it is upright."""
    # Of several pictures the first would be taken for all. A camera's second one is a preview.
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        raise ValueError(f"holds {image.n_frames} pictures: must hold one")
    width, height = image.size
    if image.getexif().get(ORIENTATION) in SIDEWAYS:
        width, height = height, width
    if image.mode in DEEP:
        return image.mode, (width, height)
    # Most images that could be transparent are not.
    if image.has_transparency_data and image.convert("RGBA").getextrema()[3][0] < OPAQUE:
        return "RGBA", (width, height)
    return "L" if image.mode in ("1", "L", "LA") else "RGB", (width, height)


def _pixels(image: Any, mode: str) -> np.ndarray:
    from PIL import ImageOps  # noqa: PLC0415

    upright = ImageOps.exif_transpose(image)
    return np.asarray(upright if mode in DEEP else upright.convert(mode))


# --- prediction ------------------------------------------------------------------------------------------------------

AXES = {"hw": "[N, H, W]", "nhwc": "[N, H, W, C]", "nchw": "[N, C, H, W]"}
# Samples that go through the network together.
ROWS_AT_ONCE = 4096
# Of probabilities that are printed.
DIGITS = 7


def check_images(x: np.ndarray, inputs: Mapping[str, Any]) -> np.ndarray:
    """Check that images are those of training in shape and scale; ValueError saying how they differ."""
    shape = tuple(inputs["shape"])
    if x.dtype.kind not in "fiub" or x.shape[1:] != shape:
        raise ValueError(
            f"x is {x.dtype} {list(x.shape)}: must be numbers {['N', *shape]}, {AXES[inputs['layout']]} as in training"
        )
    # Bytes that somebody divided by 255.
    if inputs["mode"] and x.dtype.kind == "f" and x.size and 0 < np.nanmax(x) <= 1:
        raise ValueError("x reaches from 0 to 1: must reach from 0 to 255, as in training")
    return x


def read_samples(path: Path, inputs: Mapping[str, Any], most: int) -> tuple[Any, list[str]]:
    """Read a table, or images as the network takes them ``[N, …]``, and the names of their files where each has one."""
    # Of the two kinds of folders one says so.
    is_table = inputs["layout"] == "table"
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        frame = pd.concat(read_hugging_face(path, most)[0], ignore_index=True)
        return _of_frame(frame, inputs, most), []
    if path.is_dir():
        images, _ = image_files(path)
        if not images:
            raise ValueError("no images in this folder or below")
        return _of_images(images, inputs, most), [str(image.relative_to(path)) for image in images]
    ending = path.suffix.lower()
    if ending in IMAGES:
        return _of_images([path], inputs, most), []
    if ending not in (".npy", ".npz"):
        return _of_frame(read_table(path, most)[0], inputs, most), []
    arrays: Any = np.load(io.BytesIO(read_bytes(path, most)), allow_pickle=False)
    if ending == ".npz":
        names = [name for name in arrays.files if name.lower() == "x"]
        if not names:
            raise ValueError("no array x")
        size = arrays.zip.getinfo(f"{names[0]}.npy").file_size
        refuse_more(path, size, most)
        arrays = arrays[names[0]]
    if not is_table:
        return check_images(arrays, inputs), []
    return array_frame(arrays), []


def array_frame(x: np.ndarray) -> pd.DataFrame:
    """Name the columns of an array by their places."""
    return pd.DataFrame(x).infer_objects().add_prefix("x")


def _of_frame(frame: pd.DataFrame, inputs: Mapping[str, Any], most: int) -> Any:
    if inputs["layout"] == "table":
        return frame
    # Hugging Face keeps images as bytes in a column.
    for _, column in frame.items():
        if images := image_bytes(column):
            return _of_images(images, inputs, most)
    raise ValueError("a table, and the network takes images")


def image_bytes(column: Any) -> list[bytes]:
    """List the images in a column of Hugging Face's; empty where it holds none."""
    first = column.iloc[0] if len(column) else None
    if not (isinstance(first, dict) and first.get("bytes")):
        return []
    return [image["bytes"] for image in column]


def _of_images(images: Sequence[Any], inputs: Mapping[str, Any], most: int) -> np.ndarray:
    """Read images as those of training were read."""
    if not inputs["mode"]:
        raise ValueError(
            f"an image, and the network was trained on {inputs['layout']}: give an array"
        )
    x, _ = read_images(images, most, inputs["mode"])
    layout = inputs["layout"]
    # Pillow gives channels last, and none where there is one.
    if layout != "hw" and x.ndim == 3:
        x = x[..., None]
    x = x.transpose(0, 3, 1, 2) if layout == "nchw" else x
    if x.shape[1:] != tuple(inputs["shape"]):
        raise ValueError(
            f"images are {list(x.shape[1:])}: must be {list(inputs['shape'])}, as in training"
        )
    return x


class SavedModel:
    """The model of a folder: its program, which scales and encodes by itself, what it takes, and the contract."""

    def __init__(self, folder: Path) -> None:
        structure = (folder / "structure.json").read_text(encoding="utf-8")
        self.inputs: dict[str, Any] = json.loads(structure)["inputs"]
        self.contract = read_contract(folder)
        self.program: Any = torch.export.load(folder / "network.pt2").module()

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Compute the probability of each class ``[N, classes]`` of codes or images."""
        dtype = torch.float64 if self.inputs["layout"] == "table" else torch.float32
        batches = torch.as_tensor(np.array(x), dtype=dtype).split(ROWS_AT_ONCE)
        with torch.inference_mode():
            return torch.cat([self.program(batch).softmax(1) for batch in batches]).numpy()

    def predict(self, model_input: pd.DataFrame) -> pd.DataFrame:
        """Predict class, its probability and those of all classes, for rows of a table; MLflow calls this."""
        coded, _ = check(model_input, self.inputs["columns"], self.contract)
        return answer_table(self.probabilities(coded), self.inputs["classes"])


def answer_table(probabilities: np.ndarray, classes: Sequence[str]) -> pd.DataFrame:
    """Name the most probable class of each row, with its probability, then those of all classes."""
    chosen = np.array(classes)[probabilities.argmax(1)]
    answers = {"class": chosen, "probability": probabilities.max(1)}
    answers |= {f"p({name})": probabilities[:, place] for place, name in enumerate(classes)}
    return pd.DataFrame(answers)


def _load_pyfunc(path: str) -> SavedModel:
    """Load the model in a folder; MLflow calls it by this name."""
    return SavedModel(Path(path))


def _printable(text: str) -> str:
    """Make a text one line, with what a terminal would obey made visible."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)


def main(folder: Path, arguments: Sequence[str]) -> None:
    """Print the class of each sample and its probability as CSV; exit code 2 where that cannot be."""
    options = [argument for argument in arguments if argument.startswith("--")]
    paths = [argument for argument in arguments if not argument.startswith("--")]
    if len(paths) != 1 or options not in ([], ["--probabilities"]):
        sys.stderr.write("usage: python predict.py [--probabilities] DATA\n")
        raise SystemExit(2)
    model = SavedModel(folder)
    try:
        samples, files = read_samples(Path(paths[0]), model.inputs, most_bytes())
        is_table = isinstance(samples, pd.DataFrame)
        columns = model.inputs["columns"]
        x, counts = check(samples, columns, model.contract) if is_table else (samples, [])
    # Damaged files end in errors of many kinds of many libraries.
    except Exception as error:
        reason = str(error) or type(error).__name__
        sys.stderr.write(f"predict.py: {_printable(f'{paths[0]}: {reason}')}\n")
        raise SystemExit(2) from error
    # What training did not have is predicted all the same, and said; a terminal would obey what a name may contain.
    for name, kind, rows in counts:
        line = _printable(f"column {name!r}: {kind}: {rows} of {len(x)} rows")
        sys.stderr.write(f"predict.py: {line}\n")
    classes = model.inputs["classes"]
    names = [*map(_printable, classes)] if sys.stdout.isatty() else classes
    answers = answer_table(model.probabilities(x), names)
    if not options:
        answers = answers[["class", "probability"]]
    if files:
        answers.insert(0, "file", [*map(_printable, files)])
    try:
        answers.round(DIGITS).to_csv(sys.stdout, index=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


if __name__ == "__main__":
    main(Path(__file__).parent, sys.argv[1:])
