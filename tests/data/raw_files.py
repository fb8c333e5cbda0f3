"""Raw files as their publishers write them, small."""

import struct
from typing import Any

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    """The array as an IDX file of unsigned bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype("u1").tobytes()


def digits_like(n: int, seed: int, side: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Random images and labels 0…9, each present."""
    images = np.random.default_rng(seed).integers(0, 256, (n, side, side), dtype=np.uint8)
    return images, (np.arange(n) % 10).astype(np.uint8)


def _text(value: bytes) -> bytes:
    """Python 2's str: BINSTRING."""
    return b"T" + struct.pack("<i", len(value)) + value


def _integers(values: list[int]) -> bytes:
    return b"](" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"e"


def _array(rows: int, columns: int, content: bytes, dtype: bytes) -> bytes:
    """How numpy pickled an array under Python 2: reconstruct, then state (1, shape, dtype, False, bytes)."""
    shape = b"J" + struct.pack("<i", rows) + b"J" + struct.pack("<i", columns) + b"\x86"
    kind = b"cnumpy\ndtype\n" + _text(dtype) + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + _text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    build = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _text(b"b") + b"\x87R"
    return build + b"(K\x01" + shape + kind + b"\x89" + _text(content) + b"tb"


def cifar_batch(images: np.ndarray, labels: list[int], **changes: Any) -> bytes:
    """A batch ``images [n, 3, 32, 32]`` as the official ones are written: protocol 2, Python 2's opcodes.

    ``dtype``, ``columns`` and ``content`` lie about the array.
    """
    columns = changes.get("columns", images[0].size)
    content = changes.get("content", images.tobytes())
    array = _array(len(images), columns, content, changes.get("dtype", b"u1"))
    items = _text(b"batch_label") + _text(b"training batch 1 of 5") + _text(b"labels") + _integers(labels)
    return b"\x80\x02}(" + items + _text(b"data") + array + b"u."
