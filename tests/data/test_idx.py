"""IDX files: read exactly, or refused naming the file."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from raw_files import digits_like, idx_bytes

from simic.data import idx
from simic.data.batches import read_meta
from simic.data.idx import read_idx, read_mnist_like
from simic.data.prepare import prepare
from simic.data.published import Site
from simic.errors import SimicError
from simic.params import Split
from tests.standard import Prepare

CLOSED = Site("http://127.0.0.1:1/", {}, "none")
SEVENTY = Split(train=0.7, val=0.15, test=0.15)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    for task in ("mnist", "fashion_mnist"):
        monkeypatch.setitem(idx.SITES, task, Site(CLOSED.url, idx.SITES[task].sha256, "none"))


def write_part(folder: Path, part: str, images: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels), mtime=0))


HEADER = struct.pack(">BBBB2I", 0, 0, 8, 2, 2, 3)
BAD = {
    "empty": (b"", "starts with , not 00000802"),
    "header cut": (HEADER[:7], "starts with 00000802000000, not 00000802"),
    "other magic": (b"PK\x03\x04" + HEADER[4:] + bytes(6), "starts with 504b0304"),
    "other dtype": (struct.pack(">BBBB2I", 0, 0, 13, 2, 2, 3) + bytes(24), "starts with 00000d02"),
    "other dimensions": (struct.pack(">BBBB1I", 0, 0, 8, 1, 6) + bytes(6), "starts with 00000801"),
    "no values": (struct.pack(">BBBB2I", 0, 0, 8, 2, 0, 3), "dimensions [0, 3]"),
    "absurd size": (struct.pack(">BBBB2I", 0, 0, 8, 2, 2**32 - 1, 2**32 - 1), "dimensions [4294967295"),
    "values cut": (HEADER + bytes(5), "need 6 bytes, more than none; there are 5"),
    "values too many": (HEADER + bytes(7), "need 6 bytes, more than none; there are more"),
    "a bomb": (HEADER + bytes(2**24), "need 6 bytes, more than none; there are more"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("packed", [True, False])
def test_other_content_is_refused_naming_the_file(tmp_path, case, packed):
    content, message = BAD[case]
    (tmp_path / "some-file").write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(SimicError) as error:
        read_idx(tmp_path / "some-file", 2)
    assert "some-file" in str(error.value) and message in str(error.value) and "\n" not in str(error.value)


def test_a_gzip_file_truncated_or_damaged_anywhere_is_refused_or_read_right(tmp_path):
    array = np.random.default_rng(2).integers(0, 256, (4, 30), dtype=np.uint8)
    content = gzip.compress(idx_bytes(array), mtime=0)
    path = tmp_path / "a.gz"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(SimicError, match=r"a\.gz"):
            read_idx(path, 2)
    survived = 0
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 32]) + content[at + 1 :])
        try:
            found = read_idx(path, 2)
        except SimicError:
            continue
        assert np.array_equal(found, array)
        survived += 1
    assert survived <= 9  # bytes of gzip's header that mean nothing: time, system


def test_the_official_parts_are_joined_as_images_of_their_natural_shape(tmp_path, offline):
    parts = {"train": digits_like(30, 1), "t10k": digits_like(20, 2)}
    for part, (images, labels) in parts.items():
        write_part(tmp_path, part, images, labels)
    source = read_mnist_like("fashion_mnist", tmp_path)
    assert source.name == "fashion_mnist"
    assert source.x.dtype == torch.uint8 and source.x.shape == (50, 1, 6, 6)
    expected = np.concatenate([images for images, _ in parts.values()])
    assert np.array_equal(source.x[:, 0].numpy(), expected)
    assert source.y.tolist() == [*parts["train"][1].tolist(), *parts["t10k"][1].tolist()]


def test_t10k_files_alone_are_used_and_the_source_says_so(tmp_path, offline):
    write_part(tmp_path / "mnist", "t10k", *digits_like(100, 3))
    prepare(Prepare(task="mnist", split=SEVENTY), 1, tmp_path / "out", tmp_path)
    meta = read_meta(tmp_path / "out")
    assert meta.source == "mnist, its t10k files alone"
    # 10 of each class: of 1.5, Python rounds to the even 2
    assert meta.samples == {"train": 60, "val": 20, "test": 20}


def test_train_files_alone_are_not_taken_for_the_whole(tmp_path, offline):
    write_part(tmp_path / "mnist", "train", *digits_like(100, 3))
    with pytest.raises(SimicError, match=r"mnist/t10k-images-idx3-ubyte\.gz: no such file"):
        read_mnist_like("mnist", tmp_path)


def test_images_and_labels_must_fit(tmp_path, offline):
    images, labels = digits_like(20, 4)
    for bad_labels, message in (
        (labels[:-1], r"t10k-labels-idx1-ubyte\.gz: 19 labels for the 20 images"),
        (np.where(labels == 9, 10, labels), r"t10k-labels-idx1-ubyte\.gz: label 10: must be 0…9"),
    ):
        write_part(tmp_path, "t10k", images, bad_labels)
        with pytest.raises(SimicError, match=message):
            read_mnist_like("mnist", tmp_path)
    write_part(tmp_path, "t10k", images, labels)
    write_part(tmp_path, "train", *digits_like(20, 5, side=7))
    message = r"t10k-images-idx3-ubyte: images of \(6, 6\) pixels, the others have \(7, 7\)"
    with pytest.raises(SimicError, match=message):
        read_mnist_like("mnist", tmp_path)
