"""Read a user's data as they come: a table with a column to predict, or arrays with labels beside them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image
from torch.utils import data as torch_data

from simic import durable
from simic.data.own import predict
from simic.data.own.table_columns import split_target
from simic.data.sources import npz_arrays
from simic.errors import SimicError
from simic.memory import refuse_too_much

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
TABLES = (".csv", ".tsv", ".parquet", ".feather", ".arrow", ".ipc")
KINDS = "a .csv, .tsv, .parquet, .feather, .arrow, .npz or .npy file, or a folder of images for each class"
# How often a table's file is held in memory at least.
COPIES = 3


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

    def __post_init__(self) -> None:
        shape = np.shape(self.x)
        if not shape or not shape[0]:
            raise SimicError(f"{self.name}: holds no samples: x is {list(shape)}")
        if shape[0] != len(self.y):
            raise SimicError(
                f"{self.name}: {shape[0]} samples and {len(self.y)} labels: must be as many"
            )


def read(path: Path, target: str | None = None) -> UserData:
    """Read a file or folder by its name's ending; SimicError naming what is wrong with it."""
    try:
        if path.is_dir():
            return _read_folder(path, target)
        if not path.is_file():
            raise SimicError(f"{path}: no such file; must be {KINDS}")
        # Sizes before contents.
        refuse_too_much(str(path), path.stat().st_size * COPIES, "the size of the file")
        # Of a packed file the ending before .gz.
        ending = Path(path.name.lower().removesuffix(".gz")).suffix
        # The ending of the name says how the file is read.
        if ending in TABLES:
            return _of_frame(path.name, predict.read_table(path), target, durable.sha256(path))
        if ending in (".npz", ".npy"):
            return (_read_npz if ending == ".npz" else _read_npy)(path, target)
    except (SimicError, MemoryError):
        raise
    except UnicodeDecodeError:
        raise SimicError(f"{path}: not UTF-8 text: save the table as UTF-8") from None
    except Exception as error:  # damaged files end in errors of many kinds of many libraries
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SimicError(f"{path}: cannot be read: {reason}") from error
    raise SimicError(f"{path}: must be {KINDS}")


def of_python(x: Any, y: Any = None, target: str | None = None) -> UserData:
    """Take data of a program.

    Args:
        x: a DataFrame, an array, a tensor, a torch Dataset of (sample, label), or the path of a file.
        y: labels, unless x holds them.
        target: name of the column of a DataFrame or file that holds them.
    """
    if isinstance(x, str | Path):
        return read(Path(x), target)
    if isinstance(x, torch_data.Dataset):
        pairs: list[tuple[Any, Any]] = [x[k] for k in range(len(x))]  # type: ignore[arg-type]  # sized, by its protocol
        x = np.stack([np.asarray(sample) for sample, _ in pairs])
        y = np.array([int(label) for _, label in pairs])
    # Everything else is an array of samples.
    samples = x if isinstance(x, pd.DataFrame) else np.asarray(x)
    digest = durable.sha256_of(
        samples.to_csv().encode() if isinstance(samples, pd.DataFrame) else samples.tobytes()
    )
    if isinstance(x, pd.DataFrame) and y is None:
        return _of_frame("DataFrame", x, target, digest)
    if y is None:
        raise SimicError(
            "grow: needs labels y beside x, one for each sample; a DataFrame may have them as a column"
        )
    answers = (
        y.reset_index(drop=True) if isinstance(y, pd.Series) else pd.Series(np.asarray(y).ravel())
    )
    return UserData(type(x).__name__, samples, answers.rename(answers.name or "y"), None, digest)


# --- tables ----------------------------------------------------------------------------------------------------------


def _of_frame(
    name: str, frame: pd.DataFrame, target: str | None, sha256: str, part: Any = None
) -> UserData:
    """Take a table's columns and its target; a single column of images becomes an array of them."""
    x, y = split_target(frame, target, name)
    if len(x.columns) == 0:
        raise SimicError(f"{name}: has the column {y.name!r} alone: must have others to learn from")
    # Hugging Face keeps images as bytes in a column.
    first = x.iloc[0, 0] if x.shape[1] == 1 and len(x) else None
    if isinstance(first, dict) and first.get("bytes"):
        images = _stacked(name, [pa.BufferReader(image["bytes"]) for image in x.iloc[:, 0]])
        return UserData(name, images, y, part, sha256)
    return UserData(name, x.reset_index(drop=True), y.reset_index(drop=True), part, sha256)


def _read_folder(path: Path, target: str | None) -> UserData:
    """Read a data set that Hugging Face's library saved, or images."""
    if (path / "dataset_dict.json").exists():
        folders = [
            path / name for name in json.loads((path / "dataset_dict.json").read_text())["splits"]
        ]
    elif (path / "dataset_info.json").exists():
        folders = [path]
    else:
        return _images(path)
    frames = list[pd.DataFrame]()
    parts = list[int]()
    features = {}
    for folder in folders:
        # The description of a split knows the names of its classes.
        features |= json.loads((folder / "dataset_info.json").read_text()).get("features") or {}
        state = json.loads((folder / "state.json").read_text())
        files = [folder / file["filename"] for file in state["_data_files"]]
        frames.append(pd.concat([predict.read_arrow(file) for file in files], ignore_index=True))
        parts += [SPLIT_NAMES.get(folder.name, 0)] * len(frames[-1])
    # Classes are shown by name, not by number.
    frame = pd.concat(frames, ignore_index=True)
    for name, feature in features.items():
        if isinstance(feature, dict) and feature.get("names") and name in frame:
            names: Any = dict(enumerate(feature["names"]))
            frame[name] = frame[name].map(names)
    return _of_frame(path.name, frame, target, "", np.array(parts) if len(folders) > 1 else None)


# --- arrays ----------------------------------------------------------------------------------------------------------


def _read_npz(path: Path, target: str | None) -> UserData:
    """Read x and y in any case, or parts of each: x_train, y_train, x_test, …"""
    if target is not None:
        raise SimicError(
            f"{path}: --target {target}: is for tables; in an .npz labels are the array y"
        )
    content = path.read_bytes()
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
    # X.npy goes with y.npy.
    beside = path.with_name(
        path.name.replace("X", "y", 1) if "X" in path.name else path.name.replace("x", "y", 1)
    )
    labels = Path(target) if target is not None else beside
    if labels == path or not labels.is_file():
        raise SimicError(
            f"{path}: no labels: {labels} is not there or the same; name their file, --target y.npy"
        )
    x = np.load(path, allow_pickle=False)
    y = np.load(labels, allow_pickle=False)
    digest = durable.sha256_of((durable.sha256(path) + durable.sha256(labels)).encode())
    return UserData(path.name, x, pd.Series(y.ravel(), name="y"), None, digest)


# --- images ----------------------------------------------------------------------------------------------------------


def _images(path: Path) -> UserData:
    """Read a folder of images for each class, all below folders train, val, test where there are such."""
    folders = _folders(path)
    # The folders of classes may lie in folders of splits.
    parted = bool(folders) and all(folder.name.lower() in SPLIT_NAMES for folder in folders)
    files = list[Path]()
    labels = list[str]()
    parts = list[int]()
    for split in folders if parted else [path]:
        for folder in _folders(split):
            images = sorted(
                file for file in folder.iterdir() if file.suffix.lower() in predict.IMAGES
            )
            files += images
            labels += [folder.name] * len(images)
            parts += [SPLIT_NAMES.get(split.name.lower(), 0)] * len(images)
    if not files:
        raise SimicError(f"{path}: no images in folders of it: must be {KINDS}")
    x = _stacked(str(path), files)
    digest = durable.sha256_of("".join(map(durable.sha256, files)).encode())
    return UserData(
        path.name,
        x,
        pd.Series(labels, name="folder"),
        np.array(parts) if parted else None,
        digest,
    )


def _folders(path: Path) -> list[Path]:
    return sorted(
        folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith(".")
    )


def _stacked(name: str, files: list[Any]) -> np.ndarray:
    """Read images as uint8 ``[N, H, W]`` where all are grey, else ``[N, H, W, 3]``."""
    images = list[Image.Image]()
    for file in files:
        with Image.open(file) as image:
            image.load()
            images.append(image)
    # Colour is kept where any image has it.
    grey = all(image.mode in ("L", "1") for image in images)
    width, height = images[0].size
    for file, image in zip(files, images, strict=True):
        # Modes I and F hold 16 or 32 bits, of which a conversion would keep the lowest 8.
        if image.mode[0] in "IF":
            raise SimicError(f"{name}: {file} has more than 8 bits a pixel: convert all images")
        if image.size != (width, height):
            sizes = f"{width} × {height} and {image.size[0]} × {image.size[1]} pixels"
            raise SimicError(
                f"{name}: images of {sizes} (the latter: {file}): must be of one size; resize them first"
            )
    return np.stack([np.asarray(image.convert("L" if grey else "RGB")) for image in images])
