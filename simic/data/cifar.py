"""Read CIFAR-10, binary version: records of a label and 3 × 32 × 32 bytes (www.cs.toronto.edu/~kriz/cifar.html)."""

import hashlib
import io
import tarfile
import zlib
from pathlib import Path

import numpy as np

from simic.data.published import Site, obtain
from simic.data.sources import Source, checked, read_file
from simic.errors import SimicError

TASK = "cifar10"
ARCHIVE, FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
BATCHES = (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")
CLASSES, RECORD = 10, 1 + 3 * 32 * 32
MAX_BATCH_BYTES = 2**28  # of which an archive may promise any number; an official one has 30 MB
# md5, as the authors publish it: c32a1d4ab5d03f1284b67883e8d87530
SITE = Site(
    "https://www.cs.toronto.edu/~kriz/",
    {ARCHIVE: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    "none stated (A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009)",
)


def read_cifar10(data_dir: Path) -> Source:
    """Read all 60,000 images, ``x [N, 3, 32, 32]`` uint8: from the unpacked folder, the archive or its site."""
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
    """Return the bytes of the batches; nothing is unpacked to disk."""
    try:
        with tarfile.open(fileobj=io.BytesIO(read_file(path)), mode="r:gz") as archive:
            return [(f"{path}: {name}", _member(archive, name)) for name in BATCHES]
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split()).strip("\"'")
        raise SimicError(f"{path}: damaged, or not the archive of CIFAR-10: {reason}") from None


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"{FOLDER}/{name}")
    if file is None:
        raise tarfile.ReadError(f"{name} is no file")
    return file.read(MAX_BATCH_BYTES)


def read_batch(where: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return images ``[n, 3, 32, 32]`` uint8 and labels ``[n]`` int64 of one batch; SimicError naming ``where``."""
    if not content or len(content) % RECORD:
        raise SimicError(f"{where}: {len(content)} bytes: a batch of CIFAR-10 is records of {RECORD}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= CLASSES:
        raise SimicError(f"{where}: label {labels.max()}: must be 0…{CLASSES - 1}")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels
