"""Predict with the network in this folder: ``python predict.py DATA`` prints a class for each row or image.

DATA is a table as in training (.csv, .tsv, .parquet, .feather, .arrow; a column with the answers is not needed), an
array (.npy, or x of an .npz), or an image file. Needs torch and pandas; images need pillow, Arrow and Parquet pyarrow.
"""

import gzip
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
SEPARATORS = (",", ";", "\t")
ARROW = ("arrow", "ipc", "feather")


def codes(frame: pd.DataFrame, columns: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Code a table as float64 ``[N, C]``: numbers as they are, of strings the place of their level, one that is new as
    one past the last; NaN where a value is missing. ValueError naming what does not fit.
    """
    # Columns are found by name, whatever their order.
    absent = [column["name"] for column in columns if column["name"] not in frame]
    if absent:
        names = ", ".join(map(str, frame.columns[:20]))
        raise ValueError(f"column {absent[0]!r}: not in the data; there are {names}")
    coded = np.empty((len(frame), len(columns)))
    for number, column in enumerate(columns):
        values: Any = frame[column["name"]]
        if column["levels"] is None:
            coded[:, number] = numbers(values, column["name"])
        else:
            # A level that training did not have is one past the last.
            places = {level: float(place) for place, level in enumerate(column["levels"])}
            levels = (
                values.map(str).map(places).fillna(float(len(places))).to_numpy(dtype=np.float64)
            )
            coded[:, number] = np.where(values.isna(), np.nan, levels)
    return coded


def numbers(values: Any, name: str) -> np.ndarray:
    """Convert a column to float64, NaN where a value is missing; ValueError naming one that is no finite number."""
    try:
        converted: Any = pd.to_numeric(values)
        floats = converted.to_numpy(dtype=np.float64, na_value=np.nan)
    except OverflowError:
        raise ValueError(f"column {name!r}: holds numbers beyond the range of float64") from None
    except (ValueError, TypeError):
        # Find the first value that is to blame.
        partial: Any = pd.to_numeric(values, errors="coerce")
        bad = values[partial.isna() & values.notna()]
        raise ValueError(
            f"column {name!r}: {bad.iloc[0]!r} is no number: must be numbers, as in training"
        ) from None
    if np.isinf(floats).any():
        row = int(np.isinf(floats).argmax())
        raise ValueError(f"column {name!r}: infinite in row {row}: must be finite or missing")
    return floats


def separator(path: Path) -> str:
    """Guess what separates a text table's columns: commas, semicolons or tabs, whatever its first line has most of."""
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig") as file:
        line = file.readline()
    return max(SEPARATORS, key=line.count)


def read_table(path: Path, strings: Sequence[str] = ()) -> pd.DataFrame:
    """Read a table by the ending of its name; columns of these names as ``strings``.

    ValueError where names do not say which column is which: pandas would rename the second of two equal ones, and take
    the first column for labels of rows where rows are longer than the header.
    """
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if ending == "parquet" or ending in ARROW:
        return read_arrow(path)
    sep = separator(path)
    frame = pd.read_csv(path, sep=sep, dtype=dict.fromkeys(strings, str), low_memory=False)
    # Read as values, a header that is shorter than the first row is refused.
    names = pd.read_csv(path, sep=sep, header=None, nrows=2, dtype=str).iloc[0].dropna()
    for name in names[names.duplicated()]:
        raise ValueError(f"column {name!r}: is there twice; rename one of them")
    return frame


def read_arrow(path: Path) -> pd.DataFrame:
    """Read a Parquet or Feather file, or an Arrow file or stream; ArrowInvalid, a ValueError, where it is damaged."""
    # Only these files need it.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.feather  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415

    if path.suffix.lower() == ".parquet":
        table = pyarrow.parquet.read_table(path)
    else:
        # No memory map: a file that ends too early would end the process.
        with pa.OSFile(str(path)) as source:
            magic = source.read(6)
            source.seek(0)
            if magic[:4] == b"FEA1":
                table = pyarrow.feather.read_table(source)
            elif magic == b"ARROW1":
                table = pa.ipc.open_file(source).read_all()
            else:
                table = pa.ipc.open_stream(source).read_all()
    # Offsets that lead outside of a buffer would end the process too.
    table.validate(full=True)
    return table.to_pandas()


def _samples(path: Path, inputs: Mapping[str, Any]) -> np.ndarray:
    """Read samples as the network takes them, ``[N, …]``."""
    ending = path.suffix.lower()
    if ending in IMAGES:
        from PIL import Image  # noqa: PLC0415 - only images need it

        # Images are read in the colours of the training images.
        grey = inputs["layout"] == "hw" or (inputs["layout"] == "nhwc" and inputs["shape"][-1] == 1)
        image = np.asarray(Image.open(path).convert("L" if grey else "RGB"))
        return image.reshape(1, *inputs["shape"])
    if ending in (".npy", ".npz"):
        content = np.load(path, allow_pickle=False)
        x = (
            content
            if ending == ".npy"
            else content[next(name for name in content.files if name.lower() == "x")]
        )
        if inputs["layout"] != "table":
            return x
        frame = pd.DataFrame(x, columns=[column["name"] for column in inputs["columns"]])
    else:
        # Codes that look like numbers are strings, where training had strings.
        strings = [column["name"] for column in inputs["columns"] if column["levels"] is not None]
        frame = read_table(path, strings)
    return codes(frame, inputs["columns"])


def _printable(text: str) -> str:
    """Make a text one line, with what a terminal would obey made visible."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)


def main(folder: Path, arguments: Sequence[str]) -> None:
    """Print the class of each sample and its probability as CSV; exit code 2 where that cannot be."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python predict.py DATA\n")
        raise SystemExit(2)
    inputs = json.loads((folder / "structure.json").read_text(encoding="utf-8"))["inputs"]
    try:
        x = _samples(Path(arguments[0]), inputs)
    except (OSError, ValueError, StopIteration) as error:
        reason = str(error) or "no array x"
        sys.stderr.write(f"predict.py: {_printable(f'{arguments[0]}: {reason}')}\n")
        raise SystemExit(2) from None
    # The network scales and encodes by itself.
    network = torch.export.load(folder / "network.pt2").module()
    dtype = torch.float64 if inputs["layout"] == "table" else torch.float32
    with torch.no_grad():
        probabilities = network(torch.as_tensor(np.array(x), dtype=dtype)).softmax(1)
    best = probabilities.max(1)
    # The most probable class of each sample; a terminal would obey what a name may contain.
    classes = [*map(_printable, inputs["classes"])] if sys.stdout.isatty() else inputs["classes"]
    answers = {
        "class": [classes[label] for label in best.indices],
        "probability": best.values.numpy().round(4),
    }
    try:
        pd.DataFrame(answers).to_csv(sys.stdout, index=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


if __name__ == "__main__":
    main(Path(__file__).parent, sys.argv[1:])
