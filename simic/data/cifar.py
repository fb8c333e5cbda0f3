"""CIFAR-10: the python batches, read without running what a pickle may ask for.

A batch is a pickled dict with ``data``, an array ``[n, 3072]`` of bytes (1,024 red, then green, then blue values, row
by row), and ``labels``, a list of n integers (www.cs.toronto.edu/~kriz/cifar.html).
"""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from simic.data.published import Site, obtain
from simic.data.sources import Source, checked, read_file
from simic.errors import SimicError

TASK = "cifar10"
ARCHIVE = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
BATCHES = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")
CLASSES, VALUES = 10, 3 * 32 * 32
MAX_BATCH_BYTES, MAX_ARCHIVE_BYTES = 2**28, 2**29  # the official one unpacks to 186 MB
# What a damaged pickle can end in, besides its own error.
UNPICKLING_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    MemoryError,
    OverflowError,
    struct.error,
)
# md5, as the authors publish it: c58f30108f718f92721af3b95e74349a
SITE = Site(
    "https://www.cs.toronto.edu/~kriz/",
    {ARCHIVE: "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"},
    "none stated (A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009)",
)


def read_cifar10(data_dir: Path) -> Source:
    """All 60,000 images, ``x [N, 3, 32, 32]`` uint8: from the unpacked folder, the archive, or the official address."""
    folders = (place / FOLDER for place in (data_dir / TASK, data_dir))
    folder = next((place for place in folders if place.is_dir()), None)
    files = _from_folder(folder) if folder else _from_archive(obtain(SITE, data_dir, TASK, ARCHIVE))
    images, labels, digest = [], [], hashlib.sha256()
    for where, content in files:
        digest.update(content)
        x, y = read_batch(where, content)
        images.append(x)
        labels.append(y)
    pixels, targets = checked(TASK, np.concatenate(images), np.concatenate(labels))
    return Source(TASK, digest.hexdigest(), SITE.licence, pixels, targets)


def _from_folder(folder: Path) -> list[tuple[str, bytes]]:
    return [(str(folder / name), read_file(folder / name)) for name in BATCHES]


def _from_archive(path: Path) -> list[tuple[str, bytes]]:
    """The batches' bytes; nothing is unpacked to disk."""
    try:
        with tarfile.open(fileobj=io.BytesIO(_unpacked(path)), mode="r:") as archive:
            return [(f"{path}: {name}", _member(archive, name)) for name in BATCHES]
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split()).strip("\"'")
        raise SimicError(f"{path}: damaged, or not the archive of CIFAR-10: {reason}") from None


def _unpacked(path: Path) -> bytes:
    """The archive without its compression, which may promise any length."""
    with gzip.open(io.BytesIO(read_file(path))) as file:
        content = file.read(MAX_ARCHIVE_BYTES + 1)
    if len(content) > MAX_ARCHIVE_BYTES:
        raise SimicError(f"{path}: unpacks to more than {MAX_ARCHIVE_BYTES} bytes: not the archive of CIFAR-10")
    return content


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"{FOLDER}/{name}")
    if file is None:
        raise tarfile.ReadError(f"{name} is no file")
    return file.read(MAX_BATCH_BYTES)


class _Value:
    """Stands in for whatever a pickle builds: keeps what it was built from, runs nothing."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: Any) -> None:
        self.arguments: tuple[Any, ...] = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Value):
    __slots__ = ()


class _Dtype(_Value):
    __slots__ = ()


class _Reconstruct(_Value):
    """``numpy.core.multiarray._reconstruct(ndarray, (0,), "b")``, whose state follows."""

    __slots__ = ()


# The one in Python: the one in C allocates whatever a memo index asks for.
class _BatchUnpickler(pickle._Unpickler):  # noqa: SLF001
    """Admits the three names that an array in a pickle needs, each as a stand-in; numpy itself sees checked bytes."""

    ADMITTED = {  # noqa: RUF012 - a constant
        ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
    }

    def find_class(self, module: str, name: str) -> type[_Value]:
        """The stand-in; UnpicklingError for every other name."""
        try:
            return self.ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which no batch needs") from None


def read_batch(where: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[n, 3, 32, 32]`` uint8 and labels ``[n]`` int64 of one batch; SimicError naming ``where``."""
    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        data, labels = batch[b"data"], batch[b"labels"]
    except UNPICKLING_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SimicError(f"{where}: not a batch of CIFAR-10: {reason}") from None
    pixels = _pixels(where, data)
    whole = isinstance(labels, list) and all(type(label) is int and 0 <= label < CLASSES for label in labels)
    if not whole or len(labels) != len(pixels):
        raise SimicError(f"{where}: labels must be {len(pixels)} integers 0…{CLASSES - 1}, one per image")
    return pixels, np.array(labels, dtype=np.int64)


def _pixels(where: str, array: object) -> np.ndarray:
    """The array that numpy would have built from this state: (version, shape, dtype, Fortran order?, bytes)."""
    state = array.state if isinstance(array, _Reconstruct) else None
    if isinstance(state, tuple) and len(state) == 5:
        _, shape, dtype, fortran, content = state
        kind = dtype.arguments[:1] if isinstance(dtype, _Dtype) else ()
        if kind in ((b"u1",), ("u1",)) and not fortran and isinstance(shape, tuple) and isinstance(content, bytes):
            rows = len(content) // VALUES
            if rows and shape == (rows, VALUES) and len(content) == rows * VALUES:
                return np.frombuffer(content, dtype=np.uint8).reshape(rows, 3, 32, 32)
    raise SimicError(f"{where}: data must be an array [n, {VALUES}] of bytes")
