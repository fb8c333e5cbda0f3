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

SPLIT_NAMES = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2, "testing": 2}
NPZ_NAMES = ("x", "y", *(f"{axis}_{name}" for axis in "xy" for name in SPLIT_NAMES))
ARROW = (".arrow", ".ipc")
TABLES = (".csv", ".tsv", ".parquet", ".feather", *ARROW)
KINDS = (
    "a .csv, .tsv, .parquet, .feather, .arrow, .npz or .npy file, or a folder with a folder of images for each class"
)
COPIES = 3  # of what a table's file holds at least, in memory


@dataclass(frozen=True)
class Given:
    """Data as they were given: a table or an array ``x`` of samples, one label ``y`` for each, and which of train (0),
    val (1) and test (2) it belongs to, where that was said.
    """

    name: str
    x: pd.DataFrame | np.ndarray
    y: pd.Series
    part: np.ndarray | None = None
    sha256: str = ""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise SimicError(f"{self.name}: {len(self.x)} samples and {len(self.y)} labels: must be as many")


def read(path: Path, target: str | None = None) -> Given:
    """Read a file or folder by its name's ending; SimicError naming what is wrong with it."""
    try:
        if path.is_dir():
            return _read_folder(path, target)
        if not path.is_file():
            raise SimicError(f"{path}: no such file; must be {KINDS}")
        refuse_too_much(str(path), path.stat().st_size * COPIES, "the size of the file")
        ending = path.suffix.lower() if path.suffix.lower() != ".gz" else Path(path.stem).suffix.lower()
        if ending in TABLES:
            frame = _arrow(path) if ending in ARROW else predict.read_table(path)
            return _of_frame(path.name, frame, target, durable.sha256(path))
        if ending in (".npz", ".npy"):
            return (_read_npz if ending == ".npz" else _read_npy)(path, target)
    except (SimicError, MemoryError):
        raise
    except Exception as error:  # damaged files end in errors of many kinds of many libraries
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SimicError(f"{path}: damaged, or not what its name says: {reason}") from error
    raise SimicError(f"{path}: must be {KINDS}")


def of_python(x: Any, y: Any = None, target: str | None = None) -> Given:
    """Take what a program has: a DataFrame with ``y`` or with a column ``target``, arrays, tensors or a torch Dataset
    of (sample, label).
    """
    if isinstance(x, str | Path):
        return read(Path(x), target)
    if isinstance(x, torch_data.Dataset):
        pairs: list[tuple[Any, Any]] = [x[k] for k in range(len(x))]  # type: ignore[arg-type]  # sized, by its protocol
        x, y = np.stack([np.asarray(sample) for sample, _ in pairs]), np.array([int(label) for _, label in pairs])
    samples = x if isinstance(x, pd.DataFrame) else np.asarray(x)
    digest = durable.sha256_of(samples.to_csv().encode() if isinstance(samples, pd.DataFrame) else samples.tobytes())
    if isinstance(x, pd.DataFrame) and y is None:
        return _of_frame("DataFrame", x, target, digest)
    if y is None:
        raise SimicError("grow: needs labels y beside x, one for each sample; a DataFrame may have them as a column")
    answers = y.reset_index(drop=True) if isinstance(y, pd.Series) else pd.Series(np.asarray(y).ravel())
    return Given(type(x).__name__, samples, answers.rename(answers.name or "y"), None, digest)


# --- tables ----------------------------------------------------------------------------------------------------------


def _of_frame(name: str, frame: pd.DataFrame, target: str | None, sha256: str, part: Any = None) -> Given:
    """Take a table's columns and its target; a single column of images becomes an array of them."""
    x, y = split_target(frame, target, name)
    if len(x.columns) == 0:
        raise SimicError(f"{name}: has the column {y.name!r} alone: must have others to learn from")
    if len(x.columns) == 1 and len(x) and isinstance(x.iloc[0, 0], dict) and x.iloc[0, 0].get("bytes"):
        return Given(name, _stacked(name, [pa.BufferReader(each["bytes"]) for each in x.iloc[:, 0]]), y, part, sha256)
    return Given(name, x.reset_index(drop=True), y.reset_index(drop=True), part, sha256)


def _arrow(path: Path) -> pd.DataFrame:
    """Read an Arrow file or stream: both end in .arrow."""
    with pa.memory_map(str(path)) as source:
        magic = source.read(6)
        source.seek(0)
        reader = pa.ipc.open_file(source) if magic == b"ARROW1" else pa.ipc.open_stream(source)
        return reader.read_all().to_pandas()


def _read_folder(path: Path, target: str | None) -> Given:
    """Read a data set that Hugging Face's library saved, or images."""
    if (path / "dataset_dict.json").exists():
        folders = [path / name for name in json.loads((path / "dataset_dict.json").read_text())["splits"]]
    elif (path / "dataset_info.json").exists():
        folders = [path]
    else:
        return _images(path)
    frames, parts, features = list[pd.DataFrame](), list[int](), {}
    for folder in folders:
        features |= json.loads((folder / "dataset_info.json").read_text()).get("features") or {}
        files = [folder / each["filename"] for each in json.loads((folder / "state.json").read_text())["_data_files"]]
        frames.append(pd.concat([_arrow(file) for file in files], ignore_index=True))
        parts += [SPLIT_NAMES.get(folder.name, 0)] * len(frames[-1])
    frame = pd.concat(frames, ignore_index=True)
    for name, feature in features.items():
        if isinstance(feature, dict) and feature.get("names") and name in frame:
            names: Any = dict(enumerate(feature["names"]))
            frame[name] = frame[name].map(names)
    return _of_frame(path.name, frame, target, "", np.array(parts) if len(folders) > 1 else None)


# --- arrays ----------------------------------------------------------------------------------------------------------


def _read_npz(path: Path, target: str | None) -> Given:
    """Read x and y in any case, or parts of each: x_train, y_train, x_test, …"""
    if target is not None:
        raise SimicError(f"{path}: --target {target}: is for tables; in an .npz labels are the array y")
    content = path.read_bytes()
    arrays = npz_arrays(path, content, NPZ_NAMES)
    splits = [each for each in SPLIT_NAMES if f"x_{each}" in arrays]
    pairs = [(f"x_{each}", f"y_{each}") for each in splits] or [("x", "y")]
    for x, y in pairs:
        if absent := [each for each in (x, y) if each not in arrays]:
            there = ", ".join(arrays) or "nothing"
            raise SimicError(f"{path}: no array {absent[0]!r}: must hold x and y, or x_train …; has {there}")
        if len(arrays[x]) != arrays[y].size:
            raise SimicError(f"{path}: {y} is {list(arrays[y].shape)}: must be one label for each of {len(arrays[x])}")
    x = np.concatenate([arrays[x] for x, _ in pairs])
    y = pd.Series(np.concatenate([arrays[y].ravel() for _, y in pairs]), name="y")
    part = np.concatenate([np.full(len(arrays[f"x_{each}"]), SPLIT_NAMES[each]) for each in splits]) if splits else None
    return Given(path.name, x, y, part, durable.sha256_of(content))


def _read_npy(path: Path, target: str | None) -> Given:
    """Read x.npy with y.npy beside it, or with the file that ``target`` names."""
    beside = path.with_name(path.name.replace("X", "y", 1) if "X" in path.name else path.name.replace("x", "y", 1))
    labels = Path(target) if target is not None else beside
    if labels == path or not labels.is_file():
        raise SimicError(f"{path}: no labels: {labels} is not there or the same; name their file, --target y.npy")
    x, y = (np.load(each, allow_pickle=False) for each in (path, labels))
    digest = durable.sha256_of((durable.sha256(path) + durable.sha256(labels)).encode())
    return Given(path.name, x, pd.Series(y.ravel(), name="y"), None, digest)


# --- images ----------------------------------------------------------------------------------------------------------


def _images(path: Path) -> Given:
    """Read a folder of images for each class, all below folders train, val, test where there are such."""
    folders = _folders(path)
    parted = bool(folders) and all(each.name.lower() in SPLIT_NAMES for each in folders)
    files, labels, parts = list[Path](), list[str](), list[int]()
    for top in folders if parted else [path]:
        for folder in _folders(top):
            mine = sorted(each for each in folder.iterdir() if each.suffix.lower() in predict.IMAGES)
            files, labels = files + mine, labels + [folder.name] * len(mine)
            parts += [SPLIT_NAMES.get(top.name.lower(), 0)] * len(mine)
    if not files:
        raise SimicError(f"{path}: no images in folders of it: must be {KINDS}")
    x, digest = _stacked(str(path), files), durable.sha256_of("".join(map(durable.sha256, files)).encode())
    return Given(path.name, x, pd.Series(labels, name="folder"), np.array(parts) if parted else None, digest)


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


def _stacked(where: str, files: list[Any]) -> np.ndarray:
    """Return all images as uint8 ``[N, H, W]`` where all are grey, else ``[N, H, W, 3]``."""
    images = list[Image.Image]()
    for file in files:
        with Image.open(file) as image:
            image.load()
            images.append(image)
    grey = all(each.mode in ("L", "1") for each in images)
    first = images[0].size
    for file, image in zip(files, images, strict=True):
        if image.size != first:
            sizes = f"{first[0]} × {first[1]} and {image.size[0]} × {image.size[1]} pixels"
            raise SimicError(f"{where}: images of {sizes} (the latter: {file}): must be of one size; resize them first")
    return np.stack([np.asarray(each.convert("L" if grey else "RGB")) for each in images])
