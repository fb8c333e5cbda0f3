"""Whatever a person's data come as is read, or refused in one line that says what to do."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_iris
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from simic.data.own.readers import of_python, read
from simic.data.own.table_columns import typed
from simic.errors import SimicError

IRIS = load_iris(as_frame=True)
FRAME = IRIS.frame.assign(target=IRIS.target_names[IRIS.target]).rename(
    columns={"target": "species"}
)
SPECIES = FRAME["species"].tolist()
X = IRIS.data.to_numpy()
Y = IRIS.target.to_numpy()


def write_arrow(path: Path, frame: pd.DataFrame) -> None:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def save_hugging_face(folder: Path, parts: dict[str, pd.DataFrame]) -> None:
    """As datasets.DatasetDict.save_to_disk lays files out."""
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))
    for name, frame in parts.items():
        (folder / name).mkdir()
        file = "data-00000-of-00001.arrow"
        write_arrow(folder / name / file, frame)
        features = {"species": {"names": list(IRIS.target_names), "_type": "ClassLabel"}}
        (folder / name / "dataset_info.json").write_text(json.dumps({"features": features}))
        (folder / name / "state.json").write_text(json.dumps({"_data_files": [{"filename": file}]}))


def write(folder: Path, kind: str) -> Path:
    path = folder / f"iris.{kind}"
    if kind == "parquet":
        FRAME.to_parquet(path)
    elif kind == "feather":
        FRAME.to_feather(path)
    elif kind == "arrow":
        write_arrow(path, FRAME)
    else:
        FRAME.to_csv(path, index=False, sep={"tsv": "\t", "semicolons.csv": ";"}.get(kind, ","))
    return path


@pytest.mark.parametrize(
    "kind", ["csv", "tsv", "semicolons.csv", "csv.gz", "parquet", "feather", "arrow"]
)
def test_a_table_is_the_same_from_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    table = read(write(tmp_path, kind), "species")
    assert isinstance(table.x, pd.DataFrame)
    np.testing.assert_allclose(typed(table.x).frame.to_numpy(), IRIS.data.to_numpy())
    assert table.y.tolist() == SPECIES and table.part is None


def test_a_folder_of_hugging_face_keeps_its_parts_and_names_of_classes(tmp_path: Path) -> None:
    coded = FRAME.assign(species=IRIS.target)
    save_hugging_face(tmp_path, {"train": coded[::2], "test": coded[1::2]})
    table = read(tmp_path, "species")
    assert table.y.tolist() == SPECIES[::2] + SPECIES[1::2]
    assert table.part is not None and table.part.tolist() == [0] * 75 + [2] * 75


def test_arrays_in_any_of_the_usual_names(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, X=X, Y=Y, about=np.array([{"a": 1}], dtype=object))
    data = read(path)
    assert np.array_equal(data.x, X) and np.array_equal(data.y, Y) and data.part is None
    np.savez(path, x_test=X[100:], y_test=Y[100:], X_train=X[:100], y_train=Y[:100])
    data = read(path)
    assert np.array_equal(data.x, X) and data.part is not None
    assert data.part.tolist() == [0] * 100 + [2] * 50
    # Labels in a file beside the samples, or in the one that is named.
    for name, values in (("x", X), ("y", Y), ("answers", Y[::-1])):
        np.save(tmp_path / f"{name}.npy", values)
    assert np.array_equal(read(tmp_path / "x.npy").y, Y)
    assert np.array_equal(read(tmp_path / "x.npy", str(tmp_path / "answers.npy")).y, Y[::-1])


def images(folder: Path, mode: str = "L", names: tuple[str, ...] = ("",)) -> None:
    x, y = load_digits(return_X_y=True)
    for k in range(30):
        place = folder / names[k % len(names)] / f"digit {y[k]}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((x[k] * 15).astype(np.uint8).reshape(8, 8)).convert(mode).save(
            place / f"{k:02}.png"
        )


@pytest.mark.parametrize(
    ("mode", "shape"), [("L", (30, 8, 8)), ("RGB", (30, 8, 8, 3)), ("RGBA", (30, 8, 8, 3))]
)
def test_a_folder_of_images_for_each_class_also_in_folders_of_parts(
    tmp_path: Path, mode: str, shape: tuple
) -> None:
    images(tmp_path / "whole", mode)
    images(tmp_path / "parts", mode, names=("train", "test"))
    data = read(tmp_path / "whole")
    parts = read(tmp_path / "parts").part
    assert parts is not None and sorted(set(parts)) == [0, 2]
    assert isinstance(data.x, np.ndarray) and data.x.shape == shape and data.part is None
    assert set(data.y) == {f"digit {k}" for k in range(10)} and data.x.max() == 240


def test_what_a_program_has() -> None:
    tensors = (torch.tensor(X), torch.tensor(Y))
    for data in (of_python(X, Y), of_python(*tensors), of_python(TensorDataset(*tensors))):
        assert np.array_equal(data.x, X) and np.array_equal(data.y, Y)
    for data in (of_python(FRAME, target="species"), of_python(IRIS.data, FRAME["species"])):
        assert data.y.tolist() == SPECIES


class Pairs(Dataset):
    """Gives what a function makes of each row's number."""

    def __init__(self, pair: Any) -> None:
        self.pair = pair

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, k: int) -> Any:
        return self.pair(k)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    "x",
    [
        Stream(),
        DataLoader(TensorDataset(torch.tensor(X, requires_grad=True), torch.tensor(Y)), 16),
        Pairs(lambda k: (X[k], torch.eye(3)[Y[k]])),
        Pairs(lambda k: [torch.tensor(X[k]).to_sparse(), Y[k : k + 1]]),
    ],
)
def test_data_sets_of_torch_give_samples_and_labels(x: Any) -> None:
    data = of_python(x)
    assert np.array_equal(data.x, X) and np.array_equal(data.y, Y)


def test_labels_of_a_data_set_may_be_words_and_are_not_rounded() -> None:
    assert of_python(Pairs(lambda k: (X[k], SPECIES[k]))).y.tolist() == SPECIES
    assert of_python(Pairs(lambda k: (X[k], Y[k] + 0.5))).y[0] == 0.5
    bfloat = of_python(torch.tensor(X).bfloat16(), np.eye(3)[Y])
    assert bfloat.x.shape == X.shape and np.array_equal(bfloat.y, Y)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (Pairs(lambda k: {"x": X[k], "y": Y[k]}), None, r"Pairs: gives a dict: must be \(sample"),
        (Pairs(lambda k: (X[k], Y[k], k)), None, r"gives a tuple: must be \(sample, label\)"),
        (Pairs(lambda k: (X[k][: 1 + k % 2], Y[k])), None, "must each be of one shape"),
        (
            X,
            np.full((150, 3), 1 / 3),
            r"y is \[150, 3\]: must be one label for each sample, or one",
        ),
        ([[1], [1, 2]], [0, 1], "list: cannot be made an array: .*inhomogeneous"),
    ],
)
def test_what_torch_gives_otherwise_is_refused_in_one_line(x: Any, y: Any, words: str) -> None:
    with pytest.raises(SimicError, match=words) as error:
        of_python(x, y)
    assert "\n" not in str(error.value)


def refused(path: Path, target: str | None = None) -> str:
    with pytest.raises(SimicError) as error:
        read(path, target)
    assert "\n" not in str(error.value) and path.name in str(error.value)
    return str(error.value)


def test_the_column_to_predict_is_asked_for_unless_one_is_named_so(tmp_path: Path) -> None:
    path = write(tmp_path, "csv")
    assert "say which to predict, --target COLUMN, of sepal length (cm), " in refused(path)
    assert "no such column; there are sepal" in refused(path, "kind")
    for names in ({"species": "Class"}, {"species": "y"}):
        FRAME.rename(columns=names).to_csv(path, index=False)
        assert read(path).y.tolist() == SPECIES
    FRAME.assign(label=1).rename(columns={"species": "y"}).to_csv(path, index=False)
    assert "2 columns are named" in refused(path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "feather", "arrow", "npz", "npy", "xlsx", ""])
def test_damaged_and_unknown_files_are_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"mine.{kind}"
    assert "no such file; must be a .csv" in refused(path)
    path.write_bytes(b"\x00\xff\x13 nothing")
    refused(path, "species" if kind in ("csv", "parquet", "feather", "arrow") else None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no samples"),
        (b"a,y\n", "holds no samples"),
        (b"y\n0\n1\n", "has the column 'y' alone"),
        (b"a,y,y\n1,2,0\n", "column 'y': is there twice; rename one of them"),
        (b"a,y, y \n1,2,0\n", "column 'y': is there twice"),
        # Rows longer than the header: pandas would take the first column for labels of rows, and shift all others.
        (b"a,b,y\n1,2,0,5\n3,4,1,5\n", "line 2 has 4 values, and there are 3 names"),
        (b"a,b,y\n1,2,0\n3,4\n", "line 3 has 2 values, and there are 3 names"),
        (b"a,y\n1,0\nTotal: 1 row\n", "line 3 has 1 values"),
        (b"a,y\n1,0\na,y\n2,1\n", "the line of names is there again"),
        (b"5.1,3.5,up\n4.9,3.0,up\n6.2,2.2,down\n", "the first line has values (5.1, "),
        (b"#a,y\n1,0\n2,1\n", "names or a comment?"),
        (b"a|b;y\n1|2;0\n", "may be separated by semicolons or bars: quote"),
        (
            "größe,y\n1,0\n".encode("latin-1"),
            "line 1 has the byte 0xf6; save it as CSV UTF-8, or convert",
        ),
        ("a,y\n1,0\n".encode("utf-16-le"), "not UTF-8 text: has NUL bytes"),
    ],
    ids=[
        *(
            "empty",
            "header",
            "one column",
            "twice",
            "a space",
            "long rows",
            "short rows",
            "footer",
            "joined files",
            "no names",
        ),
        *("comment or names", "two separators", "latin-1", "utf-16 without its mark"),
    ],
)
def test_odd_tables_are_refused_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    assert words in refused(path)


@pytest.mark.parametrize(
    "text",
    [
        "a,b b,y\n1,x,0\n2,é,1\n",
        "a,b b,y\n1,x,0,\n2,é,1,\n",
        "a,b b,y,\n1,x,0,\n2,é,1,\n",
        "\n\n# from a sensor\na,b b,y\n1,x,0\n\n2,é,1\n",
        "sep=;\na;b b;y\n1;x;0\n2;é;1\n",
        "a|b b|y\n1|x|0\n2|é|1\n",
        '"a" ,"b b"," y"\r\n1,"x",0\r\n2,"é",1',
        "a\tb b\ty\n1\tx\t0\n2\té\t1\n",
    ],
    ids=["plain", "trailing", "all trailing", "above", "excel", "bars", "quotes", "tabs"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_table_is_the_same_however_it_is_written(
    tmp_path: Path, text: str, encoding: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(text.encode(encoding))
    table = read(path)
    assert isinstance(table.x, pd.DataFrame)
    assert table.x.to_dict("list") == {"a": ["1", "2"], "b b": ["x", "é"]}
    assert table.y.tolist() == ["0", "1"]


def png(path: Path, pixels: np.ndarray, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def test_images_keep_their_bits_transparency_and_way_up(tmp_path: Path) -> None:
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    glass = np.arange(256, dtype=np.uint8).reshape(8, 8, 4)
    tall = np.arange(48, dtype=np.uint8).reshape(8, 6)
    lying = Image.Exif()
    lying[0x0112] = 6
    for label in "ab":
        png(tmp_path / "deep" / label / "1.png", deep)
        png(tmp_path / "glass" / label / "1.png", glass)
        png(tmp_path / "tall" / label / "1.png", tall)
        png(tmp_path / "tall" / label / "2.png", np.rot90(tall), exif=lying)
    for name, pixels in (("deep", deep), ("glass", glass), ("tall", tall)):
        images = read(tmp_path / name).x
        assert all(np.array_equal(image, pixels) for image in images)
    png(tmp_path / "deep" / "a" / "2.png", glass[..., 0])
    assert "pixels I;16 and L: must all have as many bits" in refused(tmp_path / "deep")


def test_what_computers_add_to_folders_of_images_is_no_image(tmp_path: Path) -> None:
    images(tmp_path / "around" / "set")
    folder = tmp_path / "around" / "set" / "digit 1"
    for name in ("._01.png", ".DS_Store", "Thumbs.db", "../__MACOSX/digit 1/._1.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"\0\5\x16\7")
    (folder / "deeper").mkdir()
    for file in sorted(folder.glob("[0-9]*.png"))[:1]:
        file.rename(folder / "deeper" / "00.jfif")
    (folder / "about.txt").write_text("digits")
    data = read(tmp_path / "around")
    assert len(data.x) == 30 and sorted(set(data.y)) == [f"digit {k}" for k in range(10)]
    assert data.notes == (
        "images in folders below a class are of that class: digit 1",
        "files that are no images are left out: 1 .txt",
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged, or no image of PNG, JPEG"),
        (b"<html>", "damaged, or no image of"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "damaged, or no image of"),
    ],
)
def test_the_image_that_is_damaged_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    images(tmp_path)
    file = tmp_path / "digit 3" / "03.png"
    file.write_bytes(content)
    refusal = refused(tmp_path)
    assert "digit 3/03.png" in refusal and words in refusal


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert "no images in folders of it" in refused(tmp_path)
    images(tmp_path)
    Image.new("L", (9, 8)).save(tmp_path / "digit 3" / "zz.png")
    refusal = refused(tmp_path)
    assert "images of 8 × 8 and 9 × 8 pixels" in refusal and "zz.png" in refusal
    np.savez(tmp_path / "a.npz", x=X)
    assert "no array 'y'" in refused(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=X, y=Y[:9])
    assert "one label for each of 150" in refused(tmp_path / "a.npz")
    np.save(tmp_path / "x.npy", X)
    assert "no labels" in refused(tmp_path / "x.npy")
    with pytest.raises(SimicError, match="needs labels y"):
        of_python(X)
    with pytest.raises(SimicError, match="150 samples and 3 labels: must be as many"):
        of_python(IRIS.data, [0, 1, 2])


def test_offsets_that_lead_outside_are_refused_and_end_no_process(tmp_path: Path) -> None:
    rows = 40
    table = pa.table({"a": np.arange(rows), "label": list("x" * rows)})
    path = tmp_path / "damaged.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    offsets = np.arange(rows + 1, dtype=np.int32)
    damaged = offsets.copy()
    damaged[5] = 2_000_000_000
    assert path.read_bytes().count(offsets.tobytes()) == 1
    path.write_bytes(path.read_bytes().replace(offsets.tobytes(), damaged.tobytes()))
    with pytest.raises(SimicError, match=r"damaged.arrow: cannot be read: .*offset"):
        read(path)
