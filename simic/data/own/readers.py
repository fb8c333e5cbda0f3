"""Read a user's data as they come: a table with a column to predict, or arrays with labels beside them."""

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch.utils import data as torch_data

from simic import durable
from simic.data.own import predict
from simic.data.own.table_columns import split_target
from simic.data.sources import npz_arrays
from simic.errors import SimicError
from simic.memory import machine_bytes, refuse_too_much
from simic.transfer import as_array

SPLIT_NAMES = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "dev": 1,
    "test": 2,
    "testing": 2,
}
NPZ_NAMES = ("x", "y", *(f"{axis}_{name}" for axis in "xy" for name in SPLIT_NAMES))
MOST_LETTERS = 300
KINDS = "a .csv, .tsv, .parquet, .feather, .arrow, .npz or .npy file, or a folder of images for each class"
# Endings of other files in a folder of images that a message lists.
MOST_SHOWN = 5


@dataclass(frozen=True)
class UserData:
    """Data as they came: a table or an array ``x`` of samples, one label ``y`` for each, and ``part``, which of train
    (0), val (1) and test (2) a sample belongs to, where the data say so.
    """

    name: str
    x: pd.DataFrame | np.ndarray
    y: pd.Series
    part: np.ndarray | None = None
    sha256: str = ""
    # What was noticed while they were read.
    notes: tuple[str, ...] = ()
    # Names of columns that are words, whatever they look like.
    words: tuple[str, ...] = ()
    # These separate the columns of the file.
    semicolons: bool = False
    # Pillow's name for the pixels, of image files.
    mode: str = ""

    def __post_init__(self) -> None:
        shape = np.shape(self.x)
        if not shape or not shape[0]:
            raise SimicError(f"{self.name}: holds no samples: x is {list(shape)}")
        if shape[0] != len(self.y):
            raise SimicError(
                f"{self.name}: {shape[0]} samples and {len(self.y)} labels: must be as many"
            )


def read(path: Path, target: str | None = None, words: Sequence[str] = ()) -> UserData:
    """Read a file or folder by its name's ending; SimicError naming what is wrong with it.

    Args:
        path: of the file or folder.
        target: name of the column with the labels; of an array, the file with them.
        words: names of columns of a table that are words, whatever they look like.
    """
    try:
        data = _read(path, target)
        return replace(data, words=tuple(words))
    except (SimicError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise SimicError(f"{error.filename}: no such file; must be {KINDS}") from None
    except Exception as error:  # damaged files end in errors of many kinds of many libraries
        reason = " ".join(str(error).split())[:MOST_LETTERS] or type(error).__name__
        raise SimicError(f"{path}: cannot be read: {reason}") from error


def _read(path: Path, target: str | None) -> UserData:
    if path.is_dir():
        return _read_folder(path, target)
    # Of a packed file the ending before .gz.
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    # The ending of the name says how the file is read.
    if ending in predict.TABLES:
        frame, notes = predict.read_table(path, most_bytes())
        data = _of_frame(path.name, frame, target, durable.sha256(path))
        semicolons = any("semicolons" in note for note in notes)
        return replace(data, notes=tuple(notes), semicolons=semicolons)
    if ending in (".npz", ".npy"):
        return (_read_npz if ending == ".npz" else _read_npy)(path, target)
    # Says whether there is a file before what it should be.
    predict.read_bytes(path, most_bytes())
    raise SimicError(f"{path}: must be {KINDS}")


def most_bytes() -> int:
    """Compute how many bytes of data fit into what this process may use."""
    return machine_bytes() // predict.COPIES


def of_python(x: Any, y: Any = None, target: str | None = None) -> UserData:
    """Take data of a program.

    Args:
        x: a DataFrame, an array, a tensor, a torch Dataset of (sample, label), or the path of a file.
        y: labels, unless x holds them.
        target: name of the column of a DataFrame or file that holds them.
    """
    if isinstance(x, str | Path):
        return read(Path(x), target)
    if isinstance(x, torch_data.DataLoader):
        x = x.dataset
    if isinstance(x, torch_data.Dataset):
        x, y = _of_dataset(x)
    # Everything else is an array of samples.
    samples = x if isinstance(x, pd.DataFrame) else as_array(x)
    digest = durable.sha256_of(
        samples.to_csv().encode() if isinstance(samples, pd.DataFrame) else samples.tobytes()
    )
    if isinstance(x, pd.DataFrame) and y is None:
        return _of_frame("DataFrame", x, target, digest)
    if y is None:
        raise SimicError(
            "grow: needs labels y beside x, one for each sample; a DataFrame may have them as a column"
        )
    answers = y.reset_index(drop=True) if isinstance(y, pd.Series) else pd.Series(_labels(y))
    return UserData(type(x).__name__, samples, answers.rename(answers.name or "y"), None, digest)


def _of_dataset(dataset: torch_data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Read a torch Dataset of pairs (sample, label), by number or in a row."""
    name = type(dataset).__name__
    iterates = isinstance(dataset, torch_data.IterableDataset)
    if not iterates and not hasattr(dataset, "__len__"):
        raise SimicError(f"{name}: has no length: must have __len__, or be an IterableDataset")
    items = dataset if iterates else (dataset[k] for k in range(len(dataset)))  # type: ignore[arg-type]
    samples = list[np.ndarray]()
    labels = list[np.ndarray]()
    size = 0
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise SimicError(f"{name}: gives a {type(item).__name__}: must be (sample, label)")
        samples.append(as_array(item[0]))
        labels.append(as_array(item[1]))
        # One that iterates may have no end.
        size += samples[-1].nbytes
        refuse_too_much(name, 2 * size, "the number of samples")
    shapes = {sample.shape for sample in samples}
    if len(shapes) != 1 or len({label.shape for label in labels}) != 1:
        raise SimicError(f"{name}: samples and labels must each be of one shape, and at least one")
    return np.stack(samples), np.stack(labels)


def _labels(y: Any) -> np.ndarray:
    """Make one label of each row: of a one-hot row the place of its 1."""
    labels = as_array(y)
    if labels.ndim < 2 or labels.shape[1:] == (1,):
        return labels.ravel()
    is_one_hot = labels.ndim == 2 and labels.dtype.kind in "biuf"
    if not is_one_hot or not (np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all()):
        raise SimicError(
            f"y is {list(labels.shape)}: must be one label for each sample, or one-hot rows"
        )
    return labels.argmax(axis=1)


# --- tables ----------------------------------------------------------------------------------------------------------


def _of_frame(
    name: str,
    frame: pd.DataFrame,
    target: str | None,
    sha256: str,
    part: Any = None,
) -> UserData:
    """Take a table's columns and its target; a single column of images becomes an array of them."""
    if len(frame.columns) == 1:
        raise SimicError(
            f"{name}: has the column {frame.columns[0]!r} alone: must have others to learn from, separated by commas, "
            "semicolons, tabs or bars"
        )
    x, y = split_target(frame, target, name)
    # Hugging Face keeps images as bytes in a column.
    if x.shape[1] == 1 and (images := predict.image_bytes(x.iloc[:, 0])):
        pixels, mode = predict.read_images(images, most_bytes())
        return UserData(name, pixels, y, part, sha256, mode=mode)
    return UserData(name, x.reset_index(drop=True), y.reset_index(drop=True), part, sha256)


def _read_folder(path: Path, target: str | None) -> UserData:
    """Read a data set that Hugging Face's library saved, or images."""
    if not any((path / name).exists() for name in ("dataset_dict.json", "dataset_info.json")):
        return _images(path)
    frames, names = predict.read_hugging_face(path, most_bytes())
    sizes = [len(frame) for frame in frames]
    parts = np.repeat([SPLIT_NAMES.get(name, 0) for name in names], sizes)
    frame = pd.concat(frames, ignore_index=True)
    return _of_frame(path.name, frame, target, "", parts if len(names) > 1 else None)


# --- arrays ----------------------------------------------------------------------------------------------------------


def _read_npz(path: Path, target: str | None) -> UserData:
    """Read x and y in any case, or parts of each: x_train, y_train, x_test, …"""
    if target is not None:
        raise SimicError(
            f"{path}: --target {target}: is for tables; in an .npz labels are the array y"
        )
    content = predict.read_bytes(path, most_bytes())
    arrays = npz_arrays(path, content, NPZ_NAMES)
    # Either x and y, or a pair of arrays for each split.
    splits = [split for split in SPLIT_NAMES if f"x_{split}" in arrays]
    pairs = [(f"x_{split}", f"y_{split}") for split in splits] or [("x", "y")]
    for samples, answers in pairs:
        if absent := [name for name in (samples, answers) if name not in arrays]:
            names = ", ".join(arrays) or "nothing"
            raise SimicError(
                f"{path}: no array {absent[0]!r}: must hold x and y, or x_train …; has {names}"
            )
        count = len(arrays[samples])
        if count != arrays[answers].size:
            shape = list(arrays[answers].shape)
            raise SimicError(f"{path}: {answers} is {shape}: must be one label for each of {count}")
    x = np.concatenate([arrays[samples] for samples, _ in pairs])
    y = pd.Series(np.concatenate([arrays[answers].ravel() for _, answers in pairs]), name="y")
    parts = [np.full(len(arrays[f"x_{split}"]), SPLIT_NAMES[split]) for split in splits]
    return UserData(
        path.name,
        x,
        y,
        np.concatenate(parts) if parts else None,
        durable.sha256_of(content),
    )


def _read_npy(path: Path, target: str | None) -> UserData:
    """Read x.npy with y.npy beside it, or with the file that ``target`` names."""
    content = predict.read_bytes(path, most_bytes())
    # X.npy goes with y.npy.
    beside = path.with_name(
        path.name.replace("X", "y", 1) if "X" in path.name else path.name.replace("x", "y", 1)
    )
    labels = Path(target) if target is not None else beside
    if labels == path or not labels.exists():
        raise SimicError(
            f"{path}: no labels: {labels} is not there or the same; name their file, --target y.npy"
        )
    x, y = (
        np.load(io.BytesIO(array), allow_pickle=False)
        for array in (content, predict.read_bytes(labels, most_bytes()))
    )
    digest = durable.sha256_of((durable.sha256(path) + durable.sha256(labels)).encode())
    return UserData(path.name, x, pd.Series(y.ravel(), name="y"), None, digest)


# --- images ----------------------------------------------------------------------------------------------------------


def _images(path: Path) -> UserData:
    """Read a folder of images for each class, all below folders train, val, test where there are such."""
    # Archives often have a folder around everything.
    root = path
    while len(folders := _folders(root)) == 1 and not any(map(Path.is_file, root.iterdir())):
        root = folders[0]
    # The folders of classes may lie in folders of splits.
    parted = bool(folders) and all(folder.name.lower() in SPLIT_NAMES for folder in folders)
    files = list[Path]()
    others = list[Path]()
    labels = list[str]()
    parts = list[int]()
    deeper = set[str]()
    for split in folders if parted else [root]:
        for folder in _folders(split):
            images, strangers = predict.image_files(folder)
            files += images
            others += strangers
            labels += [folder.name] * len(images)
            parts += [SPLIT_NAMES.get(split.name.lower(), 0)] * len(images)
            deeper |= {folder.name for image in images if image.parent != folder}
    if not files:
        raise SimicError(f"{path}: no images in folders of it: must be {KINDS}")
    # What was done is said, since folders can be read in other ways.
    notes = list[str]()
    if deeper:
        notes.append(
            f"images in folders below a class are of that class: {', '.join(sorted(deeper))}"
        )
    if others:
        endings = Counter(file.suffix or file.name for file in others).most_common(MOST_SHOWN)
        shown = ", ".join(f"{count} {ending}" for ending, count in endings)
        notes.append(f"files that are no images are left out: {shown}")
    x, mode = predict.read_images(files, most_bytes())
    digest = durable.sha256_of("".join(map(durable.sha256, files)).encode())
    return UserData(
        path.name,
        x,
        pd.Series(labels, name="folder"),
        np.array(parts) if parted else None,
        digest,
        notes=tuple(notes),
        mode=mode,
    )


def _folders(path: Path) -> list[Path]:
    return sorted(
        folder
        for folder in path.iterdir()
        if folder.is_dir() and not predict.is_hidden(folder.name)
    )
