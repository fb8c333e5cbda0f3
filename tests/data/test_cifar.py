"""CIFAR-10's binary batches: read exactly, or refused naming what is wrong."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from raw_files import cifar_batch, refused

from simic.data import cifar
from simic.data.batches import load_split, read_meta
from simic.data.cifar import ARCHIVE, BATCHES, FOLDER, read_batch, read_cifar10
from simic.data.prepare import prepare
from simic.data.published import Site
from simic.errors import SimicError
from tests.standard import Prepare

EACH = 20


def images(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (EACH, 3, 32, 32), dtype=np.uint8)


LABELS = [n % 10 for n in range(EACH)]
FILES = {name: cifar_batch(images(n), LABELS) for n, name in enumerate(BATCHES)}


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


def unpack(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)


def test_a_record_is_a_label_then_red_green_and_blue_row_by_row():
    x, y = read_batch("b", bytes([7]) + bytes(range(256)) * 12)
    assert y.tolist() == [7] and x.shape == (1, 3, 32, 32)
    assert x[0, 0, 1, 2] == 34 and x[0, 1, 0, 5] == 5  # place 32 + 2; green begins at place 1,024, a multiple of 256


@pytest.mark.parametrize("place", [FOLDER, f"cifar10/{FOLDER}", ARCHIVE, f"cifar10/{ARCHIVE}"])
def test_folder_and_archive_hold_the_same_source(tmp_path, place):
    path = tmp_path / "raw" / place
    if place.endswith("gz"):
        path.parent.mkdir(parents=True)
        path.write_bytes(archive(FILES))
    else:
        unpack(path)
    source = read_cifar10(tmp_path / "raw")
    assert source.x.dtype == torch.uint8 and source.x.shape == (6 * EACH, 3, 32, 32)
    assert np.array_equal(source.x[EACH : 2 * EACH].numpy(), images(1)) and source.y.tolist() == LABELS * 6
    assert source.sha256 == hashlib.sha256(b"".join(FILES.values())).hexdigest()


def test_fetched_prepared_and_standardised_per_channel(official, monkeypatch, tmp_path):
    official.files[ARCHIVE] = archive(FILES)
    digest = hashlib.sha256(official.files[ARCHIVE]).hexdigest()
    monkeypatch.setattr(cifar, "SITE", Site(official.url, {ARCHIVE: digest}, "none stated"))
    prepare(Prepare(task="cifar10"), 1, tmp_path / "out", tmp_path / "raw")
    assert (tmp_path / "raw" / "cifar10" / ARCHIVE).read_bytes() == official.files[ARCHIVE]
    data = load_split(tmp_path / "out", "train")
    assert data.shape == (3, 32, 32) and data.x.dtype == torch.float32
    assert len(read_meta(tmp_path / "out").tasks[0].mean) == 3
    assert torch.allclose(data.x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4)
    assert torch.allclose(data.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)


@pytest.mark.parametrize("content", [b"", b"hello world", FILES[BATCHES[0]][:-1], bytes([10]) + bytes(3072)])
def test_anything_else_is_refused_in_one_line_naming_the_batch(content):
    with pytest.raises(SimicError, match=r"^the batch: ") as error:
        read_batch("the batch", content)
    assert "\n" not in str(error.value)


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
    assert f"{ARCHIVE}: damaged, or not the archive of CIFAR-10" in refused(Prepare(task="cifar10"), tmp_path)
