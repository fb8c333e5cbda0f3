"""Read MNIST and CIFAR-10: a local copy first, else the official one, fetched, verified and kept."""

import gzip
import hashlib
import http.client
import io
import math
import struct
import tarfile
import time
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simic import durable
from simic.data.sources import COPIES, Source, checked, read_file
from simic.errors import SimicError
from simic.memory import refuse_too_much

# Seconds without a single byte.
TIMEOUT_S = 30.0
# Of a whole download.
MOST_SECONDS = 3600.0
PIECE = 2**16
CLASSES = 10
# The largest of the files has 170 MB, and 184 MB unpacked.
MOST_BYTES = 2**28


@dataclass(frozen=True)
class Site:
    """Where a data set is published, and the sha256 of each of its files (names end in .gz)."""

    # The folder of the files; ends in /.
    url: str
    sha256: dict[str, str]
    licence: str


SITES = {
    "mnist": Site(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        "CC BY-SA 3.0 (Y. LeCun, C. Cortes, C. Burges)",
    ),
    "cifar10": Site(
        "https://www.cs.toronto.edu/~kriz/",
        # md5, as the authors publish it: c32a1d4ab5d03f1284b67883e8d87530
        {
            "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        },
        "none stated (A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009)",
    ),
}


def local_copy(data_dir: Path, task: str, name: str) -> Path | None:
    """Find ``name`` or its unpacked form; None without one.

    Args:
        data_dir: folder of raw files; ``data_dir/task`` comes first.
        task: name of the data set.
        name: of the official file, with its ending .gz.
    """
    unpacked = name.removesuffix(".gz")
    paths = [folder / file for folder in (data_dir / task, data_dir) for file in (name, unpacked)]
    return next((path for path in paths if path.exists()), None)


def obtain(data_dir: Path, task: str, name: str) -> Path:
    """Find the local copy, or fetch the official file.

    Args:
        data_dir: folder of raw files.
        task: name of the data set, a key of ``SITES``.
        name: of the official file.

    Returns:
        The path of the copy, or of the new file ``data_dir/task/name``.

    Raises:
        SimicError: it cannot be fetched or is not the official one; the message says which file to put where.
    """
    if (path := local_copy(data_dir, task, name)) is not None:
        return path
    # There is none: fetch the official file.
    site = SITES[task]
    target = data_dir / task / name
    url = site.url + name
    try:
        content = _download(url)
    except (OSError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SimicError(
            f"{target}: no such file, and {url} cannot be fetched ({reason}): "
            "put it there by hand, or set SIMIC_DATA_DIR to a folder that has it"
        ) from None
    # What is not the official file is not kept.
    digest = durable.sha256_of(content)
    if digest != site.sha256[name]:
        raise SimicError(
            f"{url}: {len(content)} bytes with sha256 {digest}, must be {site.sha256[name]}; the download was discarded"
        )
    durable.replace_file(target, content)
    return target


def _download(url: str) -> bytes:
    """Fetch a file; OSError where it does not end, or not in time."""
    deadline = time.monotonic() + MOST_SECONDS
    size = 0
    pieces = list[bytes]()
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        # What is there already: a site that sends byte by byte never makes one read wait too long.
        while piece := response.read1(PIECE):
            size += len(piece)
            if size > MOST_BYTES:
                raise OSError(f"more than {MOST_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not whole after {MOST_SECONDS:g} seconds")
            pieces.append(piece)
    return b"".join(pieces)


# --- MNIST -----------------------------------------------------------------------------------------------------------


def read_mnist(data_dir: Path) -> Source:
    """Read all images, of both splits; ``x [N, 1, 28, 28]`` uint8.

    Where the t10k files lie in the data directory without any train file, they are used alone, and the source's name
    says so. Otherwise missing files are fetched, the t10k files last, so that a failed fetch does not leave them alone.
    """
    # Images and labels of train, then of t10k.
    names = [*SITES["mnist"].sha256]
    present = [local_copy(data_dir, "mnist", name) is not None for name in names]
    t10k_alone = present == [False, False, True, True]
    images = list[np.ndarray]()
    labels = list[np.ndarray]()
    digest = hashlib.sha256()
    # Join the parts, each an images file and a labels file.
    for pair in (names[2:],) if t10k_alone else (names[:2], names[2:]):
        paths = [obtain(data_dir, "mnist", name) for name in pair]
        x = read_idx(paths[0], 3)
        y = read_idx(paths[1], 1)
        # The files of a part must fit each other, and all parts must have one shape.
        if len(x) != len(y):
            raise SimicError(
                f"{paths[1]}: {len(y)} labels for the {len(x)} images of {paths[0].name}"
            )
        if y.max() >= CLASSES:
            raise SimicError(f"{paths[1]}: label {y.max()}: must be 0…{CLASSES - 1}")
        if images and x.shape[1:] != images[0].shape[1:]:
            raise SimicError(
                f"{paths[0]}: images of {x.shape[1:]} pixels, the others have {images[0].shape[1:]}"
            )
        images.append(x)
        labels.append(y)
        for array in (x, y):
            digest.update(f"{array.shape}".encode() + array.tobytes())
    name = "mnist, its t10k files alone" if t10k_alone else "mnist"
    pixels, targets = checked(name, np.concatenate(images)[:, None], np.concatenate(labels))
    return Source(name, digest.hexdigest(), SITES["mnist"].licence, pixels, targets)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an IDX file of bytes, packed or not, with so many dimensions; SimicError naming the file for any other
    content.

    The format (yann.lecun.com/exdb/mnist): 0, 0, type of the values (8 = unsigned byte), number of dimensions, each
    dimension as a big-endian 32-bit integer, then the values, the last dimension fastest.
    """
    content = read_file(path)
    magic = bytes((0, 0, 8, dimensions))
    try:
        with (
            gzip.open(io.BytesIO(content))
            if content.startswith(b"\x1f\x8b")
            else io.BytesIO(content) as file
        ):
            # The header says what the values are, and how many.
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != magic:
                raise SimicError(
                    f"{path}: starts with {header.hex()}, not {magic.hex()} and {dimensions} dimensions"
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size = math.prod(shape)
            refuse_too_much(f"{path}: dimensions {list(shape)}", COPIES * size, "its dimensions")
            # One byte more shows the end of the file, and has gzip compare its checksum.
            values = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SimicError(f"{path}: damaged gzip file: {error}") from None
    # The values must be as many as the header says.
    if not 0 < size == len(values):
        raise SimicError(
            f"{path}: dimensions {list(shape)} need {size} bytes, more than none; {len(values)} or more are there"
        )
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


# --- CIFAR-10 --------------------------------------------------------------------------------------------------------

FOLDER = "cifar-10-batches-bin"
BATCHES = (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")
# Bytes of a label and an image (www.cs.toronto.edu/~kriz/cifar.html).
RECORD = 1 + 3 * 32 * 32


def read_cifar10(data_dir: Path) -> Source:
    """Read all 60,000 images, ``x [N, 3, 32, 32]`` uint8: from the unpacked folder, the archive or its site."""
    folders = (data_dir / "cifar10" / FOLDER, data_dir / FOLDER)
    folder = next((folder for folder in folders if folder.is_dir()), None)
    # An unpacked folder comes first, then the archive.
    if folder is not None:
        files = [(str(folder / name), read_file(folder / name)) for name in BATCHES]
    else:
        files = _from_archive(obtain(data_dir, "cifar10", "cifar-10-binary.tar.gz"))
    batches = [read_batch(name, content) for name, content in files]
    pixels, targets = checked(
        "cifar10", *(np.concatenate(parts) for parts in zip(*batches, strict=True))
    )
    digest = durable.sha256_of(b"".join(content for _, content in files))
    return Source("cifar10", digest, SITES["cifar10"].licence, pixels, targets)


def _from_archive(path: Path) -> list[tuple[str, bytes]]:
    """Read the bytes of the batches; nothing is unpacked to disk."""
    files = list[tuple[str, bytes]]()
    try:
        # Unpacked first: headers may promise any size, and have no more than is there.
        with gzip.open(io.BytesIO(read_file(path))) as packed:
            content = packed.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise tarfile.ReadError(f"more than {MOST_BYTES} bytes unpacked")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for name in BATCHES:
                file = archive.extractfile(f"{FOLDER}/{name}")
                if file is None:
                    raise tarfile.ReadError(f"{name} is no file")
                files.append((f"{path}: {name}", file.read()))
    except (
        tarfile.TarError,
        OSError,
        EOFError,
        zlib.error,
        KeyError,
        RecursionError,
    ) as error:
        reason = " ".join(str(error).split()).strip("\"'")
        raise SimicError(f"{path}: damaged, or not the archive of CIFAR-10: {reason}") from None
    return files


def read_batch(name: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Parse images ``[n, 3, 32, 32]`` uint8 and labels ``[n]`` int64 of one batch; SimicError naming it."""
    if not content or len(content) % RECORD:
        raise SimicError(
            f"{name}: {len(content)} bytes: a batch of CIFAR-10 is records of {RECORD}"
        )
    # A record is a label and the three colours of an image, row by row.
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= CLASSES:
        raise SimicError(f"{name}: label {labels.max()}: must be 0…{CLASSES - 1}")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels
