"""CIFAR-10's batches: read exactly, and a pickle that asks for anything else runs nothing."""

import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from raw_files import cifar_batch

from simic.data import cifar
from simic.data.batches import load_split, read_meta
from simic.data.cifar import ARCHIVE, BATCHES, FOLDER, read_batch, read_cifar10
from simic.data.prepare import prepare
from simic.data.published import Site
from simic.errors import SimicError
from simic.params import Prepare

EACH = 20


def images(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (EACH, 3, 32, 32), dtype=np.uint8)


LABELS = [n % 10 for n in range(EACH)]
FILES = {name: cifar_batch(images(n), LABELS) for n, name in enumerate(BATCHES)}


def archive(files: dict[str, bytes | None]) -> bytes:
    """With a folder in the place of a file without content."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(content or b"")
            member.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            packed.addfile(member, io.BytesIO(content or b""))
    return target.getvalue()


def unpack(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)


def test_the_test_files_are_pickles_that_numpy_itself_reads():
    found = pickle.loads(FILES["data_batch_2"], encoding="bytes")  # noqa: S301 - bytes made here
    assert np.array_equal(found[b"data"].reshape(-1, 3, 32, 32), images(1))
    assert found[b"data"].dtype == np.uint8 and found[b"labels"] == LABELS


def test_a_batch_comes_back_as_it_was_written():
    x, y = read_batch("b", FILES["data_batch_1"])
    assert np.array_equal(x, images(0)) and y.tolist() == LABELS


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
    assert np.array_equal(source.x[EACH : 2 * EACH].numpy(), images(1))
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


class Harm:
    """Runs a command when unpickled by a careless reader."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_would_run_something_is_refused_unrun(tmp_path):
    content = pickle.dumps({b"data": Harm(tmp_path / "harm"), b"labels": LABELS}, protocol=3)
    with pytest.raises(SimicError, match=r"b: not a batch of CIFAR-10: asks for posix\.mkdir, which no batch needs"):
        read_batch("b", content)
    assert not (tmp_path / "harm").exists()
    pickle.loads(content)  # noqa: S301 - bytes made here
    assert (tmp_path / "harm").exists(), "the pickle does harm elsewhere"


NAMES = ["builtins\neval", "os\nsystem", "numpy\nload", "numpy\nndarray.tofile", "numpy.core.multiarray\nfromfile"]


@pytest.mark.parametrize("name", [*NAMES, "simic.data.cifar\nread_file", "copyreg\n_reconstructor"])
def test_only_what_an_array_needs_is_admitted(name):
    with pytest.raises(SimicError, match="asks for"):
        read_batch("b", f"c{name}\n.".encode())


BAD = {
    "no dict": pickle.dumps([1, 2], protocol=3),
    "no labels": pickle.dumps({b"data": 1}, protocol=3),
    "data is no array": pickle.dumps({b"data": b"x" * 3072, b"labels": [1]}, protocol=3),
    "objects": cifar_batch(images(0), LABELS, dtype=b"O8"),
    "floats": cifar_batch(images(0), LABELS, dtype=b"f4"),
    "other width": cifar_batch(images(0), LABELS, columns=3071),
    "fewer bytes than said": cifar_batch(images(0), LABELS, content=images(0).tobytes()[:-1]),
    "more bytes than said": cifar_batch(images(0), LABELS, content=images(0).tobytes() * 2),
    "too few labels": cifar_batch(images(0), LABELS[:-1]),
    "label 10": cifar_batch(images(0), [*LABELS[:-1], 10]),
    "negative label": cifar_batch(images(0), [*LABELS[:-1], -1]),
    "empty": b"",
    "text": b"hello world",
    "an empty array class": b"\x80\x02}(T\x04\x00\x00\x00datacnumpy\nndarray\nT\x06\x00\x00\x00labels](u.",
}


@pytest.mark.parametrize("case", BAD)
def test_anything_else_is_refused_in_one_line_naming_the_batch(case):
    with pytest.raises(SimicError, match=r"^the batch: ") as error:
        read_batch("the batch", BAD[case])
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_batch_truncated_anywhere_or_with_any_opcode_changed_is_refused_or_read():
    """No other exception escapes: 200 places cut, every byte outside the pixels changed in three ways."""
    content = FILES["data_batch_1"]
    for length in np.linspace(0, len(content) - 1, 200, dtype=int):
        with pytest.raises(SimicError):
            read_batch("b", content[:length])
    inside = content.index(images(0).tobytes()[:64])
    places = [at for at in range(len(content)) if not inside <= at < inside + images(0).size]
    for at in places:
        for flip in (1, 32, 255):
            changed = content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :]
            try:
                assert read_batch("b", changed)[0].shape[1:] == (3, 32, 32)
            except SimicError:
                continue


DAMAGED = {
    "cut": archive(FILES)[:5000],
    "no gzip": b"PK\x03\x04" + archive(FILES),
    "a batch is missing": archive({name: FILES[name] for name in BATCHES[:-1]}),
    "a batch is a folder": archive({BATCHES[0]: None}),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_archive_is_named(tmp_path, damage):
    (tmp_path / ARCHIVE).write_bytes(DAMAGED[damage])
    with pytest.raises(SimicError, match=r"cifar-10-python\.tar\.gz: damaged, or not the archive of CIFAR-10") as error:
        read_cifar10(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_batch_names_it(tmp_path):
    unpack(tmp_path / FOLDER)
    (tmp_path / FOLDER / "test_batch").unlink()
    with pytest.raises(SimicError, match="test_batch: no such file"):
        read_cifar10(tmp_path)
