"""Small files of every set that a shipped suite reads."""

from pathlib import Path

import numpy as np
import pytest
from raw_files import cifar_batch, digits_like, idx_bytes

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder: 400 images of MNIST and of Fashion-MNIST (t10k alone), 360 of CIFAR-10, 2,400 words of text."""
    folder = tmp_path_factory.mktemp("files")
    for seed, name in enumerate(("mnist", "fashion_mnist")):
        (folder / name).mkdir()
        for what, array in zip(("images-idx3", "labels-idx1"), digits_like(400, seed, side=28), strict=True):
            (folder / name / f"t10k-{what}-ubyte").write_bytes(idx_bytes(array))
    (folder / "cifar-10-batches-py").mkdir()
    for number, name in enumerate((*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")):
        images = np.random.default_rng(number).integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
        (folder / "cifar-10-batches-py" / name).write_bytes(cifar_batch(images, [n % 10 for n in range(60)]))
    (folder / "text").mkdir()
    order = np.random.default_rng(9).integers(0, len(WORDS), 2400)
    (folder / "text" / "tinyshakespeare.txt").write_text(" ".join(WORDS[n] for n in order))
    return folder
