"""Data files that lie, hurt or never end: refused in one line, nothing written, nothing outside touched."""

import gzip
import io
import os
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from raw_files import digits_like, idx_bytes

from simic import memory
from simic.data import cifar
from simic.data.cifar import ARCHIVE, BATCHES, FOLDER
from simic.data.prepare import prepare
from simic.errors import SimicError
from simic.params import Prepare
from tests import standard
from tests.standard import Instances, Suite

X, Y = np.arange(240, dtype=np.float32).reshape(60, 4), np.arange(60) % 3


def npy(array: np.ndarray, **claims: object) -> bytes:
    """An array as numpy writes it; ``shape`` and ``descr`` of its header may lie."""
    target = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array) | claims
    np.lib.format.write_array_header_1_0(target, header)
    return target.getvalue() + array.tobytes()


def npz(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return target.getvalue()


def directory_says(content: bytes, size: int) -> bytes:
    """The archive's directory claims another unpacked size of its first member."""
    at = content.rindex(b"PK\x01\x02", 0, content.rindex(b"PK\x01\x02"))
    return content[: at + 24] + struct.pack("<I", size) + content[at + 28 :]


def encrypted(content: bytes) -> bytes:
    return content.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00")


HEADER = npy(X)
NPZ: dict[str, bytes] = {
    "10^12 items": npz(x=npy(X, shape=(10**12, 4)), y=npy(Y)),
    "a negative shape": npz(x=npy(X, shape=(-60, -4)), y=npy(Y)),
    "more items than there are": npz(x=npy(X, shape=(61, 4)), y=npy(Y)),
    "a directory that claims 4 GB": directory_says(npz(x=npy(X, shape=(2**28, 4)), y=npy(Y)), 2**32 - 1),
    "a bomb": npz(zipfile.ZIP_DEFLATED, x=npy(X, shape=(2**20, 64))[:-960] + bytes(2**24), y=npy(Y)),
    "encrypted": encrypted(npz(x=npy(X), y=npy(Y))),
    "objects": npz(x=npy(X, descr="|O"), y=npy(Y)),
    "a type that is none": npz(x=HEADER.replace(b"'<f4'", b"'<z9'"), y=npy(Y)),
    "code in the header": npz(x=HEADER.replace(b"'<f4'", b"exit()"), y=npy(Y)),
    "a header of another version": npz(x=HEADER.replace(b"NUMPY\x01", b"NUMPY\x09"), y=npy(Y)),
    "nested brackets in the header": npz(x=b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000, y=npy(Y)),
    "names that lead outside": npz(**{"../../x": npy(X), "/etc/y": npy(Y)}),
    "a pickle": b"\x80\x04cos\nsystem\n(S'touch harm'\ntR.",
}


def refused(params: Prepare, folder: Path) -> str:
    before = sorted(folder.rglob("*"))
    with pytest.raises(SimicError) as caught:
        prepare(params, 1, folder / "out", folder)
    assert sorted(folder.rglob("*")) == before, "something was written"
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("case", NPZ)
def test_an_npz_that_lies_is_refused(tmp_path: Path, case: str) -> None:
    (tmp_path / "mine.npz").write_bytes(NPZ[case])
    assert "mine.npz" in refused(standard.Prepare(task="npz", source="mine.npz"), tmp_path)


def test_what_would_not_fit_is_refused_before_there_is_room_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = np.zeros((10_000, 64), np.float32)
    (tmp_path / "mine.npz").write_bytes(npz(zipfile.ZIP_DEFLATED, x=npy(zeros), y=npy(np.arange(10_000) % 3)))
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1_000_000)
    message = refused(standard.Prepare(task="npz", source="mine.npz"), tmp_path)
    assert "array x [10000, 64]: at least 0.0 GiB of 0.0 GiB in all, and there are 0.0 GiB of memory" in message


def test_a_suite_of_more_tasks_than_fit_is_refused_after_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_bytes", lambda: 2**30)
    suite = Suite(instances=Instances(train=1_000_000))
    assert "1000000 tasks: at least" in refused(standard.Prepare(task="suite", suite=suite), tmp_path)


def test_an_npz_with_any_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    """No other error: 400 files with one to four bytes changed, packed and not."""
    draw = random.Random(3)
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        content = npz(compression, x=npy(X), y=npy(Y))
        for _ in range(100):
            changed = bytearray(content)
            for _ in range(draw.randint(1, 4)):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            (tmp_path / "mine.npz").write_bytes(changed)
            try:
                prepare(standard.Prepare(task="npz", source="mine.npz"), 1, tmp_path / "out", tmp_path)
            except SimicError:
                continue


def make_strange(path: Path, case: str) -> None:
    if case == "a pipe":
        os.mkfifo(path)
    elif case == "a directory":
        path.mkdir()
    elif case == "a link in a circle":
        path.symlink_to(path)
    else:
        path.symlink_to({"a device": "/dev/zero", "a file outside": "/etc/hostname"}[case])


STRANGE = ("a pipe", "a directory", "a link in a circle", "a device", "a file outside")


@pytest.mark.parametrize("task", ["npz", "text"])
@pytest.mark.parametrize("case", STRANGE)
def test_a_source_that_is_no_file_of_the_data_directory_is_refused(tmp_path: Path, task: str, case: str) -> None:
    make_strange(tmp_path / "mine", case)
    assert "mine" in refused(standard.Prepare(task=task, source="mine"), tmp_path)


@pytest.mark.parametrize("source", ["../outside.npz", "/etc/passwd", "a/../../b", "a\0b", "a" * 300, "", "."])
def test_a_source_leads_nowhere_else(tmp_path: Path, source: str) -> None:
    refused(standard.Prepare(task="npz", source=source), tmp_path)


IMAGES, LABELS = digits_like(40, seed=1)
IDX: dict[str, bytes] = {
    "10^12 items": struct.pack(">BBBB3I", 0, 0, 8, 3, 10**9, 100, 100) + bytes(100),
    "more than there are": struct.pack(">BBBB3I", 0, 0, 8, 3, 41, 6, 6) + IMAGES.tobytes(),
    "a bomb": gzip.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, 40, 6, 6) + bytes(2**26)),
}


@pytest.mark.parametrize("case", IDX)
def test_an_idx_file_that_lies_is_refused(tmp_path: Path, case: str) -> None:
    name = "train-images-idx3-ubyte"
    (tmp_path / (name + (".gz" if IDX[case][:1] == b"\x1f" else ""))).write_bytes(IDX[case])
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(IMAGES))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS))
    assert name in refused(standard.Prepare(task="mnist"), tmp_path)


def tar(fill: Callable[[tarfile.TarFile], object]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as packed:
        fill(packed)
    return target.getvalue()


def member(packed: tarfile.TarFile, name: str, content: bytes = b"", **given: object) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    for key, value in given.items():
        setattr(entry, key, value)
    packed.addfile(entry, io.BytesIO(content))


def links_in_a_circle(packed: tarfile.TarFile) -> None:
    for name in BATCHES:
        member(packed, f"{FOLDER}/{name}", type=tarfile.SYMTYPE, linkname=name)


def leading_outside(packed: tarfile.TarFile) -> None:
    member(packed, "../../harm", b"harm")
    member(packed, "/tmp/harm", b"harm")


CIFAR: dict[str, bytes] = {
    "links in a circle": tar(links_in_a_circle),
    "names that lead outside": tar(leading_outside),
    "nothing": tar(lambda packed: None),
    "a bomb": gzip.compress(bytes(2**22 + 2**20), 1),
    "batches of another kind": tar(lambda packed: [member(packed, f"{FOLDER}/{n}", b"hello") for n in BATCHES]),
}


@pytest.mark.parametrize("case", CIFAR)
def test_an_archive_that_hurts_is_refused_and_nothing_is_unpacked(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar, "MAX_ARCHIVE_BYTES", 2**22)
    (tmp_path / ARCHIVE).write_bytes(CIFAR[case])
    assert ARCHIVE in refused(standard.Prepare(task="cifar10"), tmp_path)
