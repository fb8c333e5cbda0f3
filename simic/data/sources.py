"""Where samples come from: readers that return checked arrays or say which file is wrong and why."""

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simic import durable
from simic.errors import SimicError


@dataclass(frozen=True)
class Source:
    """Raw samples ``x [N, C, H, W]`` or ``[N, D]`` float32, finite; labels ``y [N]`` int64, each of 0…C-1 present."""

    name: str
    sha256: str
    licence: str
    x: Tensor
    y: Tensor


def read_digits() -> Source:
    """The 1,797 handwritten 8×8 digits that scikit-learn bundles (UCI, "Optical Recognition of Handwritten Digits")."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    pixels, labels = np.ascontiguousarray(x, dtype="<f4"), np.ascontiguousarray(y, dtype="<i8")
    images, targets = checked("scikit-learn digits", pixels.reshape(-1, 1, 8, 8), labels)
    digest = durable.sha256_of(pixels.tobytes() + labels.tobytes())
    licence = "CC BY 4.0 (E. Alpaydin, C. Kaynak, UCI Machine Learning Repository 1998, doi 10.24432/C50P49)"
    return Source("scikit-learn digits", digest, licence, images, targets)


def read_npz(data_dir: Path, source: str | None) -> Source:
    """A user's ``.npz`` with ``x [N, D]``, ``[N, H, W]`` or ``[N, C, H, W]`` and integer ``y [N]``."""
    if source is None:
        raise SimicError("prepare.source: task npz needs the path of an .npz file")
    path = _inside(data_dir, source)
    content = _read(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            missing = sorted({"x", "y"} - set(arrays.files))
            if missing:
                raise SimicError(f"{path}: no array {missing[0]!r}; it must hold x and y")
            x, y = arrays["x"], arrays["y"]
    except (ValueError, EOFError, OSError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise SimicError(f"{path}: damaged, or not an .npz file of plain arrays: {error}") from None
    images, targets = checked(str(path), x[:, None] if x.ndim == 3 else x, y)
    # The name alone: the folder would make the prepared bytes differ between machines.
    return Source(path.name, durable.sha256_of(content), "the user's own", images, targets)


def _inside(data_dir: Path, source: str) -> Path:
    """The file's path; a path from params cannot leave the data directory."""
    path = (data_dir / source).resolve()
    if not path.is_relative_to(data_dir.resolve()):
        raise SimicError(
            f"prepare.source = {source!r}: must lie under {data_dir}; set SIMIC_DATA_DIR to another folder"
        )
    return path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SimicError(f"{path}: no such file; put it there, or set SIMIC_DATA_DIR to its folder") from None
    except OSError as error:
        raise SimicError(f"{path}: not readable: {error.strerror}") from None


def checked(where: str, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    """The arrays as float32 and int64 tensors, or a SimicError naming ``where`` and what is wrong with them."""
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 4) or x.size == 0:
        raise SimicError(f"{where}: x is {x.dtype} {list(x.shape)}: must be numbers [N, D], [N, H, W] or [N, C, H, W]")
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
        raise SimicError(f"{where}: y is {y.dtype} {list(y.shape)}: must be integers [{x.shape[0]}], one per sample")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is refused below
        values = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    finite = values.flatten(1).isfinite().all(dim=1)
    if not finite.all():
        bad = int(torch.nonzero(~finite)[0])
        raise SimicError(f"{where}: sample {bad} of x has a value that is not a finite float32")
    _check_labels(where, y)
    return values, torch.from_numpy(y.astype(np.int64))


def _check_labels(where: str, y: np.ndarray) -> None:
    if y.min() < 0 or y.max() >= len(y):
        raise SimicError(f"{where}: labels reach from {y.min()} to {y.max()}: must be 0…classes-1")
    absent = np.flatnonzero(np.bincount(y.astype(np.int64)) == 0)
    if absent.size or y.max() == 0:
        what = f"no sample has label {absent[0]}" if absent.size else "every label is 0"
        raise SimicError(f"{where}: {what}: labels must be 0…classes-1 with at least two classes, each present")
