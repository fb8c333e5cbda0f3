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
    return (
        struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        + array.astype("u1").tobytes()
    )


def digits_like(n: int, seed: int, side: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Random images and labels 0…9, each present."""
    images = np.random.default_rng(seed).integers(0, 256, (n, side, side), dtype=np.uint8)
    return images, (np.arange(n) % 10).astype(np.uint8)


# --- fetching --------------------------------------------------------------------------------------------------------


# The four files of a small MNIST: 60 training and 40 test images of 6×6 pixels.
MNIST = {
    f"{part}-{name}-ubyte.gz": gzip.compress(idx_bytes(array), mtime=0)
    for part, n in (("train", 60), ("t10k", 40))
    for name, array in zip(("images-idx3", "labels-idx1"), digits_like(n, seed=n), strict=True)
}


@dataclass
class Official:
    """The official site; ``asked`` lists the names that were requested, in order."""

    url: str = "http://official/"
    files: dict[str, bytes] = field(default_factory=dict)
    fault: http.client.HTTPException | OSError | None = None
    asked: list[str] = field(default_factory=list)

    def open(self, url: str, timeout: float) -> io.BytesIO:
        name = url.removeprefix(self.url)
        self.asked.append(name)
        if self.fault is not None:
            raise self.fault
        if name not in self.files:
            raise HTTPError(url, 404, "Not Found", Message(), None)
        return io.BytesIO(self.files[name])


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> Official:
    site = Official()
    monkeypatch.setattr("urllib.request.urlopen", site.open)
    return site


def hashed(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


@pytest.fixture
def mnist(official, monkeypatch) -> None:
    """MNIST's table, pointing at the site of this test and at the checksums of its small files."""
    monkeypatch.setitem(SITES, "mnist", Site(official.url, hashed(MNIST), "none"))
    official.files = dict(MNIST)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_is_missing_is_fetched_verified_and_kept(mnist, official, tmp_path):
    prepare(Prepare(task="mnist"), 1, tmp_path / "out", tmp_path / "raw")
    assert files_of(tmp_path / "raw") == {
        f"mnist/{name}": content for name, content in MNIST.items()
    }
    assert sum(read_meta(tmp_path / "out").samples.values()) == 100
    assert load_split(tmp_path / "out", "train").shape == (1, 6, 6)
    before = files_of(tmp_path / "out")
    prepare(Prepare(task="mnist"), 1, tmp_path / "out", tmp_path / "raw")
    assert len(official.asked) == 4, "a second time nothing is fetched"
    assert files_of(tmp_path / "out") == before


@pytest.mark.parametrize("folder", ["", "mnist"])
@pytest.mark.parametrize("packed", [True, False], ids=["gz", "unpacked"])
def test_local_files_need_no_network_wherever_they_lie(mnist, official, tmp_path, folder, packed):
    raw = tmp_path / "raw" / folder
    raw.mkdir(parents=True)
    for name, content in MNIST.items():
        path = raw / (name if packed else name.removesuffix(".gz"))
        path.write_bytes(content if packed else gzip.decompress(content))
    prepare(Prepare(task="mnist"), 1, tmp_path / "out", tmp_path / "raw")
    assert official.asked == [] and read_meta(tmp_path / "out").source == "mnist"
    prepare(Prepare(task="mnist"), 1, tmp_path / "fetched", tmp_path / "other")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fetched"), (
        "the place and packing change no byte"
    )


def test_offline_the_error_says_which_file_to_put_where(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setitem(SITES, "mnist", Site("http://127.0.0.1:1/", SITES["mnist"].sha256, "none"))
    message = refused(Prepare(task="mnist"), tmp_path)
    assert message.startswith(f"{tmp_path}/mnist/train-images-idx3-ubyte.gz: no such file")
    assert "http://127.0.0.1:1/train-images-idx3-ubyte.gz cannot be fetched" in message
    assert "put it there by hand, or set SIMIC_DATA_DIR" in message


def test_a_file_the_site_does_not_have_is_named(mnist, official, tmp_path):
    del official.files["train-labels-idx1-ubyte.gz"]
    with pytest.raises(
        SimicError, match=r"train-labels-idx1-ubyte\.gz cannot be fetched \(HTTP Error 404"
    ):
        prepare(Prepare(task="mnist"), 1, tmp_path / "out", tmp_path)
    assert set(files_of(tmp_path)) == {"mnist/train-images-idx3-ubyte.gz"}, (
        "t10k comes last: it never lies there alone"
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (None, "must be"),
        (http.client.IncompleteRead(b"x", 7), "IncompleteRead"),
        (TimeoutError("timed out"), "timed"),
    ],
    ids=["other bytes", "ends early", "never answers"],
)
def test_a_bad_download_keeps_nothing(mnist, official, tmp_path, fault, words):
    official.fault = fault
    official.files["train-images-idx3-ubyte.gz"] += b"x"
    message = refused(Prepare(task="mnist"), tmp_path)
    assert "train-images-idx3-ubyte.gz" in message and words in message


# --- MNIST -----------------------------------------------------------------------------------------------------------

HEADER = struct.pack(">BBBB2I", 0, 0, 8, 2, 2, 3)
BAD = {
    "empty": (b"", "starts with , not 00000802"),
    "header cut": (HEADER[:7], "starts with 00000802000000, not 00000802"),
    "other magic": (b"PK\x03\x04" + HEADER[4:] + bytes(6), "starts with 504b0304"),
    "other dtype": (struct.pack(">BBBB2I", 0, 0, 13, 2, 2, 3) + bytes(24), "starts with 00000d02"),
    "other dimensions": (struct.pack(">BBBB1I", 0, 0, 8, 1, 6) + bytes(6), "starts with 00000801"),
    "no values": (struct.pack(">BBBB2I", 0, 0, 8, 2, 0, 3), "dimensions [0, 3]"),
    "absurd size": (
        struct.pack(">BBBB2I", 0, 0, 8, 2, 2**32 - 1, 2**32 - 1),
        "dimensions [4294967295",
    ),
    "values cut": (HEADER + bytes(5), "need 6 bytes, more than none; there are 5"),
    "a bomb": (HEADER + bytes(2**24), "need 6 bytes, more than none; there are more"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_content_is_refused_naming_the_file(tmp_path, case):
    content, message = BAD[case]
    for packed in (gzip.compress(content), content):
        (tmp_path / "some-file").write_bytes(packed)
        with pytest.raises(
            SimicError, match=rf"\A[^\n]*some-file[^\n]*{re.escape(message)}[^\n]*\Z"
        ):
            read_idx(tmp_path / "some-file", 2)


def test_a_gzip_file_truncated_or_damaged_anywhere_is_refused_or_read_right(tmp_path):
    array = np.random.default_rng(2).integers(0, 256, (4, 30), dtype=np.uint8)
    content = gzip.compress(idx_bytes(array), mtime=0)
    path, survived = tmp_path / "a.gz", 0
    for at in range(len(content)):
        path.write_bytes(content[:at])
        with pytest.raises(SimicError, match=r"a\.gz"):
            read_idx(path, 2)
        path.write_bytes(content[:at] + bytes([content[at] ^ 32]) + content[at + 1 :])
        try:
            assert np.array_equal(read_idx(path, 2), array)
            survived += 1
        except SimicError:
            continue
    assert survived <= 9  # bytes of gzip's header that mean nothing: time, system


def write_part(folder: Path, part: str, images: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels), mtime=0))


def test_the_official_parts_are_joined_as_images_of_their_natural_shape(tmp_path):
    parts = {"train": digits_like(30, 1), "t10k": digits_like(20, 2)}
    for part, arrays in parts.items():
        write_part(tmp_path, part, *arrays)
    source = read_mnist(tmp_path)
    assert source.name == "mnist"
    assert source.x.dtype == torch.uint8 and source.x.shape == (50, 1, 6, 6)
    for given, found in zip(
        zip(*parts.values(), strict=True), (source.x[:, 0], source.y), strict=True
    ):
        assert np.array_equal(np.concatenate(given), found.numpy())


def test_t10k_files_alone_are_used_and_the_source_says_so_but_train_files_alone_are_not_the_whole(
    tmp_path, official
):
    write_part(tmp_path / "mnist", "t10k", *digits_like(100, 3))
    seventy = Split(train=0.7, val=0.15, test=0.15)
    prepare(Prepare(task="mnist", split=seventy), 1, tmp_path / "out", tmp_path)
    meta = read_meta(tmp_path / "out")
    assert meta.source == "mnist, its t10k files alone"
    # 10 of each class: of 1.5, Python rounds to the even 2
    assert meta.samples == {"train": 60, "val": 20, "test": 20}
    official.files.clear()
    write_part(tmp_path / "other" / "mnist", "train", *digits_like(100, 3))
    with pytest.raises(SimicError, match=r"mnist/t10k-images-idx3-ubyte\.gz: no such file"):
        read_mnist(tmp_path / "other")


def test_images_and_labels_must_fit(tmp_path):
    images, labels = digits_like(20, 4)
    for bad_labels, message in (
        (labels[:-1], r"t10k-labels-idx1-ubyte\.gz: 19 labels for the 20 images"),
        (np.where(labels == 9, 10, labels), r"t10k-labels-idx1-ubyte\.gz: label 10: must be 0…9"),
    ):
        write_part(tmp_path, "t10k", images, bad_labels)
        with pytest.raises(SimicError, match=message):
            read_mnist(tmp_path)
    write_part(tmp_path, "t10k", images, labels)
    write_part(tmp_path, "train", *digits_like(20, 5, side=7))
    with pytest.raises(
        SimicError,
        match=r"t10k-images-idx3-ubyte: images of \(6, 6\) pixels, the others have \(7, 7\)",
    ):
        read_mnist(tmp_path)


# --- CIFAR-10 --------------------------------------------------------------------------------------------------------

[ARCHIVE], EACH = SITES["cifar10"].sha256, 20
LABELS = [n % 10 for n in range(EACH)]
IMAGES = np.random.default_rng(0).integers(0, 256, (len(BATCHES), EACH, 3, 32, 32), dtype=np.uint8)
FILES = {
    name: b"".join(
        bytes([label]) + image.tobytes() for label, image in zip(LABELS, images, strict=True)
    )
    for name, images in zip(BATCHES, IMAGES, strict=True)
}


def archive(files: dict[str, bytes | None], kind: bytes = tarfile.DIRTYPE) -> bytes:
    """Pack files; one without content becomes a folder, or a link to itself."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(content or b"")
            member.type, member.linkname = tarfile.REGTYPE if content is not None else kind, name
            packed.addfile(member, io.BytesIO(content or b""))
    return target.getvalue()


@pytest.mark.parametrize("place", [FOLDER, f"cifar10/{FOLDER}", ARCHIVE, f"cifar10/{ARCHIVE}"])
def test_folder_and_archive_hold_the_same_source(tmp_path, place):
    path = tmp_path / place
    for name, content in ({"": archive(FILES)} if place.endswith("gz") else FILES).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    source = read_cifar10(tmp_path)
    assert source.x.dtype == torch.uint8 and source.x.shape == (6 * EACH, 3, 32, 32)
    assert (
        np.array_equal(source.x.numpy(), np.concatenate(IMAGES)) and source.y.tolist() == LABELS * 6
    )
    assert source.sha256 == hashlib.sha256(b"".join(FILES.values())).hexdigest()


def test_fetched_prepared_and_standardised_per_channel(official, monkeypatch, tmp_path):
    official.files = {ARCHIVE: archive(FILES)}
    monkeypatch.setitem(SITES, "cifar10", Site(official.url, hashed(official.files), "none stated"))
    prepare(Prepare(task="cifar10"), 1, tmp_path / "out", tmp_path / "raw")
    assert (tmp_path / "raw" / "cifar10" / ARCHIVE).read_bytes() == official.files[ARCHIVE]
    data = load_split(tmp_path / "out", "train")
    assert data.shape == (3, 32, 32) and data.x.dtype == torch.float32
    assert len(read_meta(tmp_path / "out").tasks[0].mean) == 3
    assert torch.allclose(data.x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4)
    assert torch.allclose(data.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)


def test_a_record_is_a_label_then_red_green_and_blue_row_by_row_and_anything_else_is_refused_naming_the_batch():
    x, y = read_batch("b", bytes([7]) + bytes(range(256)) * 12)
    assert y.tolist() == [7] and x.shape == (1, 3, 32, 32)
    assert (
        x[0, 0, 1, 2] == 34 and x[0, 1, 0, 5] == 5
    )  # place 32 + 2; green begins at place 1,024, a multiple of 256
    for content in (b"", b"hello world", FILES[BATCHES[0]][:-1], bytes([10]) + bytes(3072)):
        with pytest.raises(SimicError, match=r"^the batch: [^\n]*$"):
            read_batch("the batch", content)


HARMFUL = {
    "cut": archive(FILES)[:5000],
    "no gzip": b"PK\x03\x04" + archive(FILES),
    "a batch is missing": archive({name: FILES[name] for name in BATCHES[:-1]}),
    "a batch is a folder": archive({BATCHES[0]: None}),
    "links in a circle": archive(dict.fromkeys(BATCHES), tarfile.SYMTYPE),
    "names that lead outside": archive({"../../harm": b"harm"}),
    "a bomb": gzip.compress(bytes(2**22 + 2**20), 1),
}


@pytest.mark.parametrize("case", HARMFUL)
def test_an_archive_that_is_damaged_or_hurts_is_refused_and_nothing_is_unpacked(tmp_path, case):
    (tmp_path / ARCHIVE).write_bytes(HARMFUL[case])
    assert f"{ARCHIVE}: damaged, or not the archive of CIFAR-10" in refused(
        Prepare(task="cifar10"), tmp_path
    )
