"""Read MNIST and Fashion-MNIST: IDX files of unsigned bytes, packed or not.

The format (yann.lecun.com/exdb/mnist): 0, 0, type of the values (8 = unsigned byte), number of dimensions, each
dimension as a big-endian 32-bit integer, then the values, the last dimension fastest.
"""

import gzip
import hashlib
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from simic.data.published import Site, local_copy, obtain
from simic.data.sources import COPIES, Source, checked, read_file
from simic.durable import sha256_of
from simic.errors import SimicError
from simic.memory import Need, refuse_too_much

UNSIGNED_BYTE = 8
CLASSES = 10
PACKED = b"\x1f\x8b"
PARTS = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "t10k": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
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
    "fashion_mnist": Site(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
        "MIT (Zalando SE, H. Xiao, K. Rasul, R. Vollgraf)",
    ),
}


def read_mnist_like(task: str, data_dir: Path) -> Source:
    """Read all images of ``mnist`` or ``fashion_mnist``, of both of its splits; ``x [N, 1, 28, 28]`` uint8.

    Where the t10k files lie in the data directory without any train file, they are used alone, and the source's name
    says so. Otherwise missing files are fetched, the t10k files last, so that a failed fetch does not leave them alone.
    """
    site = SITES[task]
    have = {part: [local_copy(data_dir, task, name) is not None for name in names] for part, names in PARTS.items()}
    alone = all(have["t10k"]) and not any(have["train"])
    images, labels, digest = [], [], hashlib.sha256()
    for part in ("t10k",) if alone else PARTS:
        paths = [obtain(site, data_dir, task, name) for name in PARTS[part]]
        for path in paths:
            _refuse_another_set(path, task)
        x, y = (read_idx(path, dimensions) for path, dimensions in zip(paths, (3, 1), strict=True))
        if len(x) != len(y):
            raise SimicError(f"{paths[1]}: {len(y)} labels for the {len(x)} images of {paths[0].name}")
        if len(y) and y.max() >= CLASSES:
            raise SimicError(f"{paths[1]}: label {y.max()}: must be 0…{CLASSES - 1}")
        if images and x.shape[1:] != images[0].shape[1:]:
            raise SimicError(f"{paths[0]}: images of {x.shape[1:]} pixels, the others have {images[0].shape[1:]}")
        images.append(x)
        labels.append(y)
        for array in (x, y):
            digest.update(f"{array.shape}".encode() + array.tobytes())
    name = f"{task}, its t10k files alone" if alone else task
    pixels, targets = checked(name, np.concatenate(images)[:, None], np.concatenate(labels))
    return Source(name, digest.hexdigest(), site.licence, pixels, targets)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an array of bytes with so many dimensions; SimicError naming the file for any other content."""
    content, kind = read_file(path), bytes((0, 0, UNSIGNED_BYTE, dimensions))
    try:
        with gzip.open(io.BytesIO(content)) if content.startswith(PACKED) else io.BytesIO(content) as file:
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != kind:
                raise SimicError(f"{path}: starts with {header.hex()}, not {kind.hex()} and {dimensions} dimensions")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size = math.prod(shape)
            refuse_too_much([Need(f"{path}: dimensions {list(shape)}", COPIES * size, "its dimensions")])
            values = file.read(size + 1)  # one more: to see the end, and gzip's checksum with it
    except (OSError, EOFError, zlib.error) as error:
        raise SimicError(f"{path}: damaged gzip file: {error}") from None
    if not 0 < size == len(values):
        more = "more" if len(values) > size else f"{len(values)}"
        raise SimicError(f"{path}: dimensions {list(shape)} need {size} bytes, more than none; there are {more}")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def _refuse_another_set(path: Path, task: str) -> None:
    """Raise SimicError for a file of the other set, whose files have the same names."""
    others = {digest: other for other, site in SITES.items() if other != task for digest in site.sha256.values()}
    owner = others.get(sha256_of(read_file(path)))
    if owner is not None:
        raise SimicError(f"{path}: is a file of {owner}, not of {task}; put it into a folder {owner}/")
