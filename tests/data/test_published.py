"""MNIST and CIFAR-10: a local copy first, else the official one, verified; read exactly, or refused in one line."""

import gzip
import hashlib
import http.client
import io
import re
import struct
import tarfile
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest
import torch

from simic.data import published
from simic.data.batches import load_split, read_meta
from simic.data.prepare import prepare
from simic.data.published import (
    BATCHES,
    FOLDER,
    SITES,
    Site,
    read_batch,
    read_cifar10,
    read_idx,
    read_mnist,
)
from simic.errors import SimicError
from simic.params import Split
from tests.data.refusals import refused
from tests.standard import Prepare


def idx_bytes(array: np.ndarray) -> bytes:
    """The array as an IDX file of unsigned bytes."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype("u1").tobytes()


def digits_like(n: int, seed: int, side: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Random images and labels 0…9, each present."""
    images = np.random.default_rng(seed).integers(0, 256, (n, side, side), dtype=np.uint8)
    return images, (np.arange(n) % 10).astype(np.uint8)


# --- fetching --------------------------------------------------------------------------------------------------------

# The parts and the four files of a small MNIST: 60 training and 40 test images of 6×6 pixels.
PARTS = {"train": digits_like(60, seed=1), "t10k": digits_like(40, seed=2)}
MNIST = {
    f"{part}-{name}-ubyte.gz": gzip.compress(idx_bytes(array), mtime=0)
    for part, arrays in PARTS.items()
    for name, array in zip(("images-idx3", "labels-idx1"), arrays, strict=True)
}


@dataclass
class Official:
    """The official site; ``requests`` lists the names of files in order."""

    url: str = "http://official/"
    files: dict[str, bytes] = field(default_factory=dict)
    fault: http.client.HTTPException | OSError | None = None
    requests: list[str] = field(default_factory=list)

    def open(self, url: str, timeout: float) -> io.BytesIO:
        name = url.removeprefix(self.url)
        self.requests.append(name)
        if self.fault is not None:
            raise self.fault
        if name not in self.files:
            raise HTTPError(url, 404, "Not Found", Message(), None)
        return io.BytesIO(self.files[name])


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> Official:
    """A site with the small MNIST; the tables of both data sets point at it and at the checksums of small files."""
    site = Official(files=dict(MNIST))
    monkeypatch.setattr("urllib.request.urlopen", site.open)
    for task, files in (("mnist", MNIST), ("cifar10", {ARCHIVE: archive(FILES)})):
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        monkeypatch.setitem(SITES, task, Site(site.url, hashes, "none"))
    return site


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_is_missing_is_fetched_verified_and_kept(official, tmp_path):
    prepare(Prepare(task="mnist"), 1, tmp_path / "out", tmp_path / "raw")
    assert files_of(tmp_path / "raw") == {f"mnist/{name}": file for name, file in MNIST.items()}
    assert sum(read_meta(tmp_path / "out").samples.values()) == 100
    assert load_split(tmp_path / "out", "train").shape == (1, 6, 6)
    before = files_of(tmp_path / "out")
    prepare(Prepare(task="mnist"), 1, tmp_path / "out", tmp_path / "raw")
    assert len(official.requests) == 4, "a second time nothing is fetched"
    assert files_of(tmp_path / "out") == before


@pytest.mark.parametrize("folder", ["", "mnist"])
@pytest.mark.parametrize("packed", [True, False], ids=["gz", "unpacked"])
def test_local_files_need_no_network_and_are_joined(official, tmp_path, folder, packed):
    (tmp_path / folder).mkdir(exist_ok=True)
    for name, content in MNIST.items():
        path = tmp_path / folder / (name if packed else name.removesuffix(".gz"))
        path.write_bytes(content if packed else gzip.decompress(content))
    source = read_mnist(tmp_path)
    assert official.requests == [] and source.name == "mnist"
    images, labels = (np.concatenate(arrays) for arrays in zip(*PARTS.values(), strict=True))
    assert source.x.dtype == torch.uint8
    assert np.array_equal(source.x, images[:, None]) and np.array_equal(source.y, labels)


def test_offline_the_error_says_which_file_to_put_where(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setitem(SITES, "mnist", Site("http://127.0.0.1:1/", SITES["mnist"].sha256, "none"))
    message = refused(Prepare(task="mnist"), tmp_path)
    assert message.startswith(f"{tmp_path}/mnist/train-images-idx3-ubyte.gz: no such file")
    assert "http://127.0.0.1:1/train-images-idx3-ubyte.gz cannot be fetched" in message
    assert "put it there by hand, or set SIMIC_DATA_DIR" in message


def test_a_file_the_site_does_not_have_is_named(official, tmp_path):
    del official.files["train-labels-idx1-ubyte.gz"]
    with pytest.raises(SimicError, match=r"train-labels-.* cannot be fetched \(HTTP Error 404"):
        read_mnist(tmp_path)
    # t10k comes last: it never lies there alone.
    assert set(files_of(tmp_path)) == {"mnist/train-images-idx3-ubyte.gz"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (None, "must be"),
        (http.client.IncompleteRead(b"x", 7), "IncompleteRead"),
        (TimeoutError("timed out"), "timed"),
    ],
    ids=["other bytes", "ends early", "never answers"],
)
def test_a_bad_download_keeps_nothing(official, tmp_path, fault, words):
    official.fault = fault
    official.files["train-images-idx3-ubyte.gz"] += b"x"
    message = refused(Prepare(task="mnist"), tmp_path)
    assert "train-images-idx3-ubyte.gz" in message and words in message


class Endless(io.BytesIO):
    """A download without end, a byte at a time."""

    def read1(self, size: int | None = -1) -> bytes:
        return b"x"

    def read(self, size: int | None = -1) -> bytes:
        raise AssertionError("would wait for as many bytes")


@pytest.mark.parametrize(
    ("bound", "value", "words"),
    [
        ("MOST_BYTES", 1000, "more than 1000 bytes"),
        ("MOST_SECONDS", 0.02, "not whole after 0.02 seconds"),
    ],
)
def test_a_download_without_end_is_ended(
    official: Official,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    value: float,
    words: str,
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: Endless())
    monkeypatch.setattr(published, bound, value)
    message = refused(Prepare(task="mnist"), tmp_path)
    assert "train-images-idx3-ubyte.gz cannot be fetched" in message and words in message
    assert files_of(tmp_path / "mnist") == {}


# --- MNIST -----------------------------------------------------------------------------------------------------------

HEADER = struct.pack(">BBBB2I", 0, 0, 8, 2, 2, 3)
BAD = {
    "empty": (b"", "starts with , not 00000802"),
    "other magic": (b"PK\x03\x04" + HEADER[4:] + bytes(6), "starts with 504b0304"),
    "no values": (HEADER[:4] + struct.pack(">2I", 0, 3), "dimensions [0, 3]"),
    "absurd size": (HEADER[:4] + b"\xff" * 8, "dimensions [4294967295"),
    "values cut": (HEADER + bytes(5), "need 6 bytes, more than none; 5 or more are there"),
    "a bomb": (HEADER + bytes(2**24), "need 6 bytes, more than none; 7 or more are there"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_content_is_refused_naming_the_file(tmp_path, case):
    content, message = BAD[case]
    for packed in (gzip.compress(content), content):
        (tmp_path / "some-file").write_bytes(packed)
        line = rf"\A[^\n]*some-file[^\n]*{re.escape(message)}[^\n]*\Z"
        with pytest.raises(SimicError, match=line):
            read_idx(tmp_path / "some-file", 2)


def test_a_gzip_file_truncated_or_damaged_anywhere_is_refused_or_read_right(tmp_path):
    array = np.random.default_rng(2).integers(0, 256, (4, 30), dtype=np.uint8)
    content = gzip.compress(idx_bytes(array), mtime=0)
    path = tmp_path / "a.gz"
    harmless = 0
    for place in range(len(content)):
        path.write_bytes(content[:place])
        with pytest.raises(SimicError, match=r"a\.gz"):
            read_idx(path, 2)
        path.write_bytes(content[:place] + bytes([content[place] ^ 32]) + content[place + 1 :])
        try:
            assert np.array_equal(read_idx(path, 2), array)
            harmless += 1
        except SimicError:
            continue
    assert harmless <= 9  # bytes of gzip's header that mean nothing: time, system


def write_part(folder: Path, part: str, images: np.ndarray, labels: np.ndarray) -> None:
    (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels), mtime=0))


def test_t10k_files_alone_are_used_and_the_source_says_so_but_train_files_alone_are_not_the_whole(
    tmp_path, official
):
    write_part(tmp_path, "t10k", *digits_like(100, 3))
    seventy = Split(train=0.7, val=0.15, test=0.15)
    prepare(Prepare(task="mnist", split=seventy), 1, tmp_path / "out", tmp_path)
    meta = read_meta(tmp_path / "out")
    assert meta.source == "mnist, its t10k files alone"
    # 10 of each class: of 1.5, Python rounds to the even 2
    assert meta.samples == {"train": 60, "val": 20, "test": 20}
    official.files.clear()
    for path in tmp_path.glob("t10k-*"):
        path.rename(path.with_name(path.name.replace("t10k", "train")))
    with pytest.raises(SimicError, match=r"mnist/t10k-images-idx3-ubyte\.gz: no such file"):
        read_mnist(tmp_path)


def test_images_and_labels_must_fit(tmp_path):
    images, labels = digits_like(20, 4)
    for wrong_labels, message in (
        (labels[:-1], r"t10k-labels-idx1-ubyte\.gz: 19 labels for the 20 images"),
        (labels + 1, r"t10k-labels-idx1-ubyte\.gz: label 10: must be 0…9"),
    ):
        write_part(tmp_path, "t10k", images, wrong_labels)
        with pytest.raises(SimicError, match=message):
            read_mnist(tmp_path)
    write_part(tmp_path, "t10k", images, labels)
    write_part(tmp_path, "train", *digits_like(20, 5, side=7))
    message = r"t10k-images-.*: images of \(6, 6\) pixels, the others have \(7, 7\)"
    with pytest.raises(SimicError, match=message):
        read_mnist(tmp_path)


# --- CIFAR-10 --------------------------------------------------------------------------------------------------------

[ARCHIVE] = SITES["cifar10"].sha256
BATCH_SIZE = 20
LABELS = [n % 10 for n in range(BATCH_SIZE)]
IMAGES = np.random.default_rng(0).integers(0, 256, (6, BATCH_SIZE, 3, 32, 32), dtype=np.uint8)
FILES = {
    name: b"".join(bytes([n % 10]) + image.tobytes() for n, image in enumerate(images))
    for name, images in zip(BATCHES, IMAGES, strict=True)
}


def archive(files: dict[str, bytes | None]) -> bytes:
    """Pack files; one without content becomes a link to itself."""
    target = io.BytesIO()
    # Without a time, so that equal files give equal archives.
    with (
        gzip.GzipFile(fileobj=target, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as packed,
    ):
        for name, content in files.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(content or b"")
            member.linkname = name
            member.type = tarfile.SYMTYPE if content is None else tarfile.REGTYPE
            packed.addfile(member, io.BytesIO(content or b""))
    return target.getvalue()


@pytest.mark.parametrize(
    "place", [FOLDER, f"cifar10/{FOLDER}", ARCHIVE, f"cifar10/{ARCHIVE}", "the site"]
)
def test_folder_archive_and_site_hold_the_same_source(tmp_path, official, place):
    path = tmp_path / place
    official.files[ARCHIVE] = archive(FILES)
    files = {} if place == "the site" else FILES
    for name, content in ({"": archive(FILES)} if place.endswith("gz") else files).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    source = read_cifar10(tmp_path)
    assert source.x.dtype == torch.uint8
    assert np.array_equal(source.x, np.concatenate(IMAGES)) and source.y.tolist() == LABELS * 6
    assert source.sha256 == hashlib.sha256(b"".join(FILES.values())).hexdigest()


def test_a_record_is_a_label_then_red_green_and_blue_row_by_row_and_anything_else_is_refused_naming_the_batch():
    x, y = read_batch("b", bytes([7]) + bytes(range(256)) * 12)
    assert y.tolist() == [7] and x.shape == (1, 3, 32, 32)
    # Place 32 + 2; green begins at place 1,024, a multiple of 256.
    assert x[0, 0, 1, 2] == 34 and x[0, 1, 0, 5] == 5
    for content in (b"", FILES[BATCHES[0]][:-1], bytes([10]) + bytes(3072)):
        with pytest.raises(SimicError, match=r"^the batch: [^\n]*$"):
            read_batch("the batch", content)


HARMFUL = {
    "cut": archive(FILES)[:5000],
    "a batch is missing": archive({name: FILES[name] for name in BATCHES[:-1]}),
    "links in a circle": archive(dict.fromkeys(BATCHES)),
    "names that lead outside": archive({"../../harm": b"harm"}),
    "a bomb": gzip.compress(bytes(2**22 + 2**20), 1),
}


@pytest.mark.parametrize("case", HARMFUL)
def test_an_archive_that_is_damaged_or_hurts_is_refused_and_nothing_is_unpacked(tmp_path, case):
    (tmp_path / ARCHIVE).write_bytes(HARMFUL[case])
    message = refused(Prepare(task="cifar10"), tmp_path)
    assert f"{ARCHIVE}: damaged, or not the archive of CIFAR-10" in message


def test_an_archive_that_unpacks_to_more_than_there_can_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a good one otherwise; its last block would hold as much as somebody likes."""
    (tmp_path / ARCHIVE).write_bytes(archive(FILES))
    size = len(gzip.decompress(archive(FILES)))
    monkeypatch.setattr(published, "MOST_BYTES", size)
    assert len(read_cifar10(tmp_path)) == 6 * BATCH_SIZE
    monkeypatch.setattr(published, "MOST_BYTES", size - 1)
    message = refused(Prepare(task="cifar10"), tmp_path)
    assert f"{ARCHIVE}: damaged, " in message and f"more than {size - 1} bytes" in message
