"""Whatever a person's data come as is read, or refused in one line that says what to do."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_iris
from torch.utils.data import TensorDataset

from simic.data.own.readers import of_python, read
from simic.errors import SimicError

IRIS = load_iris(as_frame=True)
FRAME = IRIS.frame.assign(target=IRIS.target_names[IRIS.target]).rename(
    columns={"target": "species"}
)


def save_hugging_face(folder: Path, parts: dict[str, pd.DataFrame]) -> None:
    """As datasets.DatasetDict.save_to_disk lays files out."""
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))
    for name, frame in parts.items():
        (folder / name).mkdir()
        table, file = pa.Table.from_pandas(frame, preserve_index=False), "data-00000-of-00001.arrow"
        with pa.ipc.new_stream(str(folder / name / file), table.schema) as writer:
            writer.write_table(table)
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
        table = pa.Table.from_pandas(FRAME)
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    else:
        FRAME.to_csv(path, index=False, sep={"tsv": "\t", "semicolons.csv": ";"}.get(kind, ","))
    return path


@pytest.mark.parametrize(
    "kind", ["csv", "tsv", "semicolons.csv", "csv.gz", "parquet", "feather", "arrow"]
)
def test_a_table_is_the_same_from_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    given = read(write(tmp_path, kind), "species")
    assert isinstance(given.x, pd.DataFrame)
    np.testing.assert_allclose(given.x.to_numpy(), IRIS.data.to_numpy())
    assert given.y.tolist() == FRAME["species"].tolist() and given.part is None


def test_a_folder_of_hugging_face_keeps_its_parts_and_names_of_classes(tmp_path: Path) -> None:
    coded = FRAME.assign(species=IRIS.target)
    save_hugging_face(tmp_path, {"train": coded[::2], "test": coded[1::2]})
    given = read(tmp_path, "species")
    assert given.y.tolist() == [*FRAME["species"][::2], *FRAME["species"][1::2]]
    assert given.part is not None and given.part.tolist() == [0] * 75 + [2] * 75


def test_arrays_in_any_of_the_usual_names(tmp_path: Path) -> None:
    x, y = IRIS.data.to_numpy(), IRIS.target.to_numpy()
    np.savez(tmp_path / "a.npz", X=x, Y=y, about=np.array([{"a": 1}], dtype=object))
    np.savez(tmp_path / "b.npz", x_test=x[100:], y_test=y[100:], X_train=x[:100], y_train=y[:100])
    whole, parted = read(tmp_path / "a.npz"), read(tmp_path / "b.npz")
    assert np.array_equal(whole.x, x) and whole.y.tolist() == y.tolist() and whole.part is None
    assert (
        np.array_equal(parted.x, x)
        and parted.part is not None
        and parted.part.tolist() == [0] * 100 + [2] * 50
    )
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "answers.npy", y[::-1])
    assert read(tmp_path / "x.npy").y.tolist() == y.tolist()
    assert read(tmp_path / "x.npy", str(tmp_path / "answers.npy")).y.tolist() == y[::-1].tolist()


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
    given, parts = read(tmp_path / "whole"), read(tmp_path / "parts").part
    assert parts is not None and sorted(set(parts)) == [0, 2]
    assert isinstance(given.x, np.ndarray) and given.x.shape == shape and given.part is None
    assert set(given.y) == {f"digit {k}" for k in range(10)} and given.x.max() == 240


def test_what_a_program_has() -> None:
    x, y = IRIS.data.to_numpy(), IRIS.target.to_numpy()
    pairs = TensorDataset(torch.tensor(x), torch.tensor(y))
    for given in (of_python(x, y), of_python(torch.tensor(x), torch.tensor(y)), of_python(pairs)):
        assert np.array_equal(given.x, x) and given.y.tolist() == y.tolist()
    assert (
        of_python(FRAME, target="species").y.tolist()
        == of_python(IRIS.data, FRAME["species"]).y.tolist()
    )


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
        assert read(path).y.tolist() == FRAME["species"].tolist()
    FRAME.assign(label=1).rename(columns={"species": "y"}).to_csv(path, index=False)
    assert "2 columns are named" in refused(path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "feather", "arrow", "npz", "npy", "xlsx", ""])
def test_damaged_and_unknown_files_are_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"mine.{kind}"
    assert "no such file; must be a .csv" in refused(path)
    path.write_bytes(b"\x00\xff\x13 nothing")
    refused(path, "species" if kind in ("csv", "parquet", "feather", "arrow") else None)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert "no images in folders of it" in refused(tmp_path)
    images(tmp_path)
    Image.new("L", (9, 8)).save(tmp_path / "digit 3" / "zz.png")
    assert "images of 8 × 8 and 9 × 8 pixels" in refused(tmp_path) and "zz.png" in refused(tmp_path)
    np.savez(tmp_path / "a.npz", x=IRIS.data)
    assert "no array 'y'" in refused(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=IRIS.data, y=IRIS.target[:9])
    assert "one label for each of 150" in refused(tmp_path / "a.npz")
    np.save(tmp_path / "x.npy", IRIS.data)
    assert "no labels" in refused(tmp_path / "x.npy")
    with pytest.raises(SimicError, match="needs labels y"):
        of_python(IRIS.data.to_numpy())
    with pytest.raises(SimicError, match="150 samples and 3 labels: must be as many"):
        of_python(IRIS.data, [0, 1, 2])
