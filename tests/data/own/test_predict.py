"""The program beside a grown network reads what training read, in every form, and refuses what is not alike."""

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from simic.data.own import predict
from simic.data.own.own_data import OwnData, own_data
from simic.data.own.readers import of_python, read
from simic.errors import SimicError

MOST = 10**9
ROWS = 80
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=ROWS).round(2) * 3000
WORDS = RNG.choice(["north", "south", "None"], ROWS)
LABELS = np.where(NUMBERS > 0, "up", "down")


def prepared(x: Any, y: Any = None, **options: Any) -> OwnData:
    data = x if y is None else of_python(x, y)
    return own_data(data, {"val": 0.2, "test": 0.2}, 1, **options)


def read_samples(path: Path, inputs: dict[str, Any], most: int) -> tuple[np.ndarray, list[str]]:
    """The samples of a file, of a table its codes."""
    samples, files = predict.read_samples(path, inputs, most)
    if isinstance(samples, pd.DataFrame):
        samples = predict.codes(samples, inputs["columns"])
    return samples, files


def table(numbers: list[str], separator: str = ",") -> str:
    rows = zip(numbers, WORDS, LABELS, strict=True)
    return "\n".join(map(separator.join, [("a", "side", "label"), *rows])) + "\n"


FORMS = {
    "points": ("{:.2f}", ","),
    "commas": ("{:.2f}", ";"),
    "thousands": ('"{:,.2f}"', ","),
    "thousands of Europe": ("{:_.2f}", ";"),
    "apostrophes": ("{:_.2f}", "\t"),
    "dollars": ('"${:,.2f}"', ","),
    "percent": ("{:.2f} %", ","),
    "brackets": ('"{:,.2f}"', ","),
}


def written(form: str) -> str:
    """The table with its numbers in a form."""
    pattern, separator = FORMS[form]
    texts = [pattern.format(number) for number in NUMBERS]
    if form in ("commas", "thousands of Europe"):
        texts = [text.replace(".", ",").replace("_", ".") for text in texts]
    if form == "brackets":
        texts = [f'"({text[2:-1]})"' if text.startswith('"-') else text for text in texts]
    return table([text.replace("_", "'") for text in texts], separator)


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_numbers_however_they_are_written(tmp_path: Path, form: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(written(form))
    data = prepared(read(path))
    column, words = data.inputs.columns
    assert column.levels is None and words.levels == ("None", "north", "south")
    inputs = data.inputs.model_dump()
    samples, _ = read_samples(path, inputs, MOST)
    np.testing.assert_allclose(samples[:, 0], NUMBERS.round(2), atol=1e-9)
    # A part of the file is read by what the whole was.
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:4]))
    np.testing.assert_allclose(read_samples(path, inputs, MOST)[0], samples[:3])


@pytest.mark.parametrize("mark", ["?", "-", "n/a", "NULL", "unknown", "#DIV/0!", " "])
def test_marks_among_numbers_are_missing_values_and_said(tmp_path: Path, mark: str) -> None:
    texts = [mark if k % 9 == 0 else str(number) for k, number in enumerate(NUMBERS)]
    path = tmp_path / "mine.csv"
    path.write_text(table(texts))
    data = prepared(read(path))
    assert data.inputs.columns[0].missing and data.inputs.columns[0].levels is None
    said = f"column 'a': {mark!r} among numbers is read as no value"
    assert mark == " " or said in data.notes
    samples, _ = read_samples(path, data.inputs.model_dump(), MOST)
    assert np.isnan(samples[::9, 0]).all() and np.isnan(samples[:, 0]).sum() == len(texts[::9])


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (
            ["1.5" + str(k) if k else "low" for k in range(ROWS)],
            "99 % are numbers, but 'low' is no",
        ),
        ([f"${k}.5" if k % 2 else f"€{k}" for k in range(ROWS)], "units differ, as in"),
        ([f"{k}.5 %" if k % 2 else f"0.{k}" for k in range(ROWS)], "units differ, as in"),
    ],
)
def test_a_column_that_is_mostly_numbers_is_asked_about(
    tmp_path: Path, texts: list[str], words: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(table(texts))
    with pytest.raises(SimicError, match=f"column 'a': .*{words}.*--words a"):
        prepared(read(path))
    data = prepared(read(path, words=["a"]))
    assert "left out, since no text there is in 3 training rows: a" in data.notes
    with pytest.raises(SimicError, match="--words b: no such column"):
        prepared(read(path, words=["b"]))


@pytest.mark.parametrize(
    ("separator", "text", "number"),
    [(";", "1,234", 1.234), (",", '"1,234"', 1234), ("\t", "1.234", 1.234)],
)
def test_a_number_with_two_readings_is_read_as_said(
    tmp_path: Path, separator: str, text: str, number: float
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(table([text.replace("2", str(1 + k % 9)) for k in range(ROWS)], separator))
    data = prepared(read(path))
    samples, _ = read_samples(path, data.inputs.model_dump(), MOST)
    assert samples[1, 0] == number
    assert any("is read as 1" in note and "; if it is 1" in note for note in data.notes)


def test_codes_that_pandas_reads_as_numbers_are_the_levels_they_were(tmp_path: Path) -> None:
    codes = RNG.choice(["1", "02", "A"], ROWS)
    data = prepared(pd.DataFrame({"code": codes, "noise": NUMBERS}), LABELS)
    assert "column 'code': read as words, since 'A' is no number" in data.notes
    inputs = data.inputs.model_dump()
    assert data.inputs.columns[0].levels == ("02", "1", "A")
    for values, places in (
        (["1", "02", "A"], [1, 0, 2]),
        ([1, 2, 1], [1, 0, 1]),
        ([1.0, 2.0, np.nan], [1, 0, np.nan]),
        (pd.Categorical([1, 2, 1]), [1, 0, 1]),
    ):
        frame = pd.DataFrame({"code": values, "noise": [0.0, 1.0, 2.0]})
        np.testing.assert_equal(predict.codes(frame, inputs["columns"])[:, 0], places)
    (tmp_path / "new.csv").write_text("code ,noise\n1.0,0\n2,1\n,2\n")
    samples, _ = read_samples(tmp_path / "new.csv", inputs, MOST)
    np.testing.assert_equal(samples[:, 0], [1, 0, np.nan])


def write(path: Path) -> None:
    frame = pd.DataFrame({"a": NUMBERS, "side": WORDS, "label": LABELS})
    if path.suffix == ".parquet":
        frame.astype({"a": pd.ArrowDtype(pa.decimal128(9, 2))}).to_parquet(path)
    elif path.suffix == ".feather":
        frame.to_feather(path)
    elif path.suffix in (".arrow", ".ipc"):
        arrow = pa.Table.from_pandas(frame)
        with pa.ipc.new_file(str(path), arrow.schema) as writer:
            writer.write_table(arrow)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")


@pytest.mark.parametrize(
    "ending", ["csv", "CSV", "csv.gz", "tsv", "parquet", "feather", "arrow", "ipc"]
)
def test_every_kind_of_table_is_predicted_as_it_was_trained_on(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"mine.{ending}"
    write(path)
    data = prepared(read(path))
    samples, _ = read_samples(path, data.inputs.model_dump(), MOST)
    np.testing.assert_allclose(samples[:, 0], NUMBERS)
    assert {column.name: column.levels for column in data.inputs.columns} == {
        "a": None,
        "side": ("None", "north", "south"),
    }


def test_columns_of_an_array_are_found_by_their_place(tmp_path: Path) -> None:
    x = np.stack([np.ones(ROWS), NUMBERS], 1)
    data = prepared(x, LABELS)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "a.npz", X=x)
    for name in ("x.npy", "a.npz"):
        samples, _ = read_samples(tmp_path / name, data.inputs.model_dump(), MOST)
        np.testing.assert_array_equal(samples[:, 0], NUMBERS)


PIXELS = RNG.integers(0, 255, (40, 6, 8, 4), dtype=np.uint8)
KINDS = {
    "L": PIXELS[..., 0],
    "RGB": PIXELS[..., :3],
    "RGBA": PIXELS,
    "I;16": PIXELS[..., 0].astype("u2") * 250,
}


@pytest.mark.parametrize("mode", KINDS)
def test_images_are_predicted_as_they_were_trained_on(tmp_path: Path, mode: str) -> None:
    for k, pixels in enumerate(KINDS[mode]):
        file = tmp_path / "set" / "ab"[k % 2] / f"{k:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    data = prepared(read(tmp_path / "set"))
    assert data.inputs.mode == mode
    inputs = data.inputs.model_dump()
    samples, files = read_samples(tmp_path / "set", inputs, MOST)
    np.testing.assert_array_equal(samples, KINDS[mode][[*range(0, 40, 2), *range(1, 40, 2)]])
    assert files[:2] == ["a/00.png", "a/02.png"]
    one, _ = read_samples(tmp_path / "set" / "b" / "01.png", inputs, MOST)
    np.testing.assert_array_equal(one[0], KINDS[mode][1])
    # What is not alike is refused, by the name of the file.
    for name, image, words in (
        ("big", Image.new(mode, (9, 9)), r"are \[9, 9.*must be \[6, 8"),
        (
            "deep",
            Image.new("L" if mode == "I;16" else "I;16", (8, 6)),
            "must all have as many bits",
        ),
        ("glass", Image.new("RGBA", (8, 6)), "transparent|as many bits"),
    ):
        image.save(tmp_path / f"{name}.png")
        if (name, mode) != ("glass", "RGBA"):
            with pytest.raises(ValueError, match=words):
                read_samples(tmp_path / f"{name}.png", inputs, MOST)


def test_the_order_of_channels_and_the_scale_are_those_of_training(tmp_path: Path) -> None:
    y = np.arange(40) % 2
    images = KINDS["RGB"]
    first = prepared(images.transpose(0, 3, 1, 2), y).inputs.model_dump()
    last = prepared(images, y).inputs.model_dump()
    Image.fromarray(images[5]).save(tmp_path / "5.png")
    np.testing.assert_array_equal(
        read_samples(tmp_path / "5.png", first, MOST)[0], images[5:6].transpose(0, 3, 1, 2)
    )
    np.testing.assert_array_equal(read_samples(tmp_path / "5.png", last, MOST)[0], images[5:6])
    for x, inputs, words in (
        (images, first, r"\[N, C, H, W\] as in training"),
        (images.transpose(0, 3, 1, 2), last, r"\[N, H, W, C\] as in training"),
        (images / 255, last, "reaches from 0 to 1: must reach from 0 to 255"),
    ):
        with pytest.raises(ValueError, match=words):
            predict.check_images(x, inputs)
    # Of an array of other numbers nobody knows how an image would have become them.
    floats = prepared(images / 255, y).inputs.model_dump()
    with pytest.raises(ValueError, match="an image, and the network was trained on nhwc"):
        read_samples(tmp_path / "5.png", floats, MOST)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "npz", "npy", "png"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder of nothing"])
def test_what_is_no_file_is_never_waited_for(tmp_path: Path, ending: str, kind: str) -> None:
    path = tmp_path / f"mine.{ending}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    inputs = prepared(pd.DataFrame({"a": NUMBERS}), LABELS).inputs.model_dump()
    with pytest.raises(ValueError, match=r"a regular file|no images in|an image, and"):
        read_samples(path, inputs, MOST)
    with pytest.raises(SimicError):
        read(path)


def test_what_unpacks_to_more_than_there_is_room_for_is_refused_first(tmp_path: Path) -> None:
    small = 100_000
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(bytes(10 * small)))
    rows = pa.table({"a": np.zeros(small), "b": np.zeros(small)})
    parquet.write_table(rows, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), rows.schema) as writer:
        writer.write_table(pa.table({"a": pa.nulls(small), "b": pa.nulls(small)}).cast(rows.schema))
    Image.new("L", (1000, 1000)).save(tmp_path / "a.png")
    for name in ("a.csv.gz", "a.parquet", "a.arrow"):
        with pytest.raises(ValueError, match="there is room for"):
            predict.read_table(tmp_path / name, small)
    with pytest.raises(ValueError, match="there is room for"):
        predict.read_images([tmp_path / "a.png"], small)


def test_a_line_without_end_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a" * 2**25, 1))
    with pytest.raises(ValueError, match="a line has more than 16777216 bytes"):
        predict.read_table(tmp_path / "a.csv.gz", MOST)
