"""Data files that lie, hurt or never end are refused in one line: nothing is written, nothing outside is touched."""

import io
import os
import random
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from simic import memory
from simic.data.prepare import prepare
from simic.errors import SimicError
from tests import standard
from tests.data.refusals import refused
from tests.standard import Instances, Prepare, Suite

X = np.arange(240, dtype=np.float32).reshape(60, 4)
Y = np.arange(60) % 3


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


NPZ: dict[str, bytes] = {
    "10^12 items": npz(x=npy(X, shape=(10**12, 4)), y=npy(Y)),
    "a directory that claims 4 GB": directory_says(
        npz(x=npy(X, shape=(2**28, 4)), y=npy(Y)), 2**32 - 1
    ),
    "a bomb": npz(
        zipfile.ZIP_DEFLATED, x=npy(X, shape=(2**20, 64))[:-960] + bytes(2**24), y=npy(Y)
    ),
    "objects": npz(x=npy(X, descr="|O"), y=npy(Y)),
    "code in the header": npz(x=npy(X).replace(b"'<f4'", b"exit()"), y=npy(Y)),
    "nested brackets in the header": npz(
        x=b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000, y=npy(Y)
    ),
    "names that lead outside": npz(**{"../../x": npy(X), "/etc/y": npy(Y)}),
    "a pickle": b"\x80\x04cos\nsystem\n(S'touch harm'\ntR.",
}


@pytest.mark.parametrize("case", NPZ)
def test_an_npz_that_lies_is_refused(tmp_path: Path, case: str) -> None:
    (tmp_path / "mine.npz").write_bytes(NPZ[case])
    assert "mine.npz" in refused(standard.Prepare(task="npz", source="mine.npz"), tmp_path)


def test_what_would_not_fit_is_refused_before_there_is_room_made_for_it_and_a_suite_after_its_first_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.zeros((10_000, 64), np.float32)
    np.savez_compressed(tmp_path / "mine.npz", x=x, y=np.arange(10_000) % 3)
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1_000_000)
    message = refused(standard.Prepare(task="npz", source="mine.npz"), tmp_path)
    assert "mine.npz: arrays x, y: at least 0.0 GiB, and there are 0.0 GiB of memory" in message
    monkeypatch.setattr(memory, "machine_bytes", lambda: 2**30)
    suite = Suite(instances=Instances(train=1_000_000))
    assert "1000000 tasks: at least" in refused(
        standard.Prepare(task="suite", suite=suite), tmp_path
    )


def test_an_npz_with_any_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    """No other error: 160 files with one to four bytes changed, packed and not."""
    draw = random.Random(3)
    params = standard.Prepare(task="npz", source="mine.npz")
    for compression in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
        zipfile.ZIP_LZMA,
        zipfile.ZIP_BZIP2,
    ):
        content = npz(compression, x=npy(X), y=npy(Y))
        for _ in range(40):
            changed = bytearray(content)
            for _ in range(draw.randint(1, 4)):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            (tmp_path / "mine.npz").write_bytes(changed)
            with suppress(SimicError):
                prepare(params, 1, tmp_path / "out", tmp_path)


STRANGE = {
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a link in a circle": lambda path: path.symlink_to(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a file outside": lambda path: path.symlink_to("/etc/hostname"),
}


@pytest.mark.parametrize("task", ["npz", "text"])
@pytest.mark.parametrize("case", STRANGE)
def test_a_source_that_is_no_file_of_the_data_directory_is_refused(
    tmp_path: Path, task: str, case: str
) -> None:
    STRANGE[case](tmp_path / "mine")
    assert "mine" in refused(standard.Prepare(task=task, source="mine"), tmp_path)


@pytest.mark.parametrize(
    "source", ["../outside.npz", "/etc/passwd", "a/../../b", "a\0b", "a" * 300, "", "."]
)
def test_a_source_leads_nowhere_else(tmp_path: Path, source: str) -> None:
    refused(Prepare(task="npz", source=source), tmp_path)
