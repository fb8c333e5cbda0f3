"""Raw files as their publishers write them, small, and what ``prepare`` says of those that it refuses."""

import struct
from pathlib import Path

import numpy as np
import pytest

from simic.data.prepare import prepare
from simic.errors import SimicError
from simic.params import Prepare


def idx_bytes(array: np.ndarray) -> bytes:
    """The array as an IDX file of unsigned bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype("u1").tobytes()


def digits_like(n: int, seed: int, side: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Random images and labels 0…9, each present."""
    images = np.random.default_rng(seed).integers(0, 256, (n, side, side), dtype=np.uint8)
    return images, (np.arange(n) % 10).astype(np.uint8)


def refused(params: Prepare, folder: Path) -> str:
    """Return the one line in which preparing data of a folder is refused; nothing in it has changed."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(SimicError) as caught:
        prepare(params, 1, folder / "out", folder)
    assert sorted(folder.rglob("*")) == before, "something was written"
    assert "\n" not in str(caught.value)
    return str(caught.value)
