"""A local copy first, else the official address; verified, whole or absent, and an error that says what to do."""

import gzip
import hashlib
import threading
from pathlib import Path

import pytest
from raw_files import refused

from simic.data import idx, published
from simic.data.batches import load_split, read_meta
from simic.data.prepare import prepare
from simic.data.published import Site
from simic.errors import SimicError
from tests.standard import Prepare


@pytest.fixture
def site(official, mnist_files, monkeypatch) -> Site:
    """MNIST's table, pointing at the server of this test and at the checksums of its small files."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in mnist_files.items()}
    found = Site(official.url, digests, "none")
    monkeypatch.setitem(idx.SITES, "mnist", found)
    official.files = dict(mnist_files)
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_missing_is_fetched_verified_and_kept(site, official, mnist_files, tmp_path):
    prepare(Prepare(task="mnist"), 1, tmp_path / "out", tmp_path / "raw")
    assert files_of(tmp_path / "raw") == {f"mnist/{name}": content for name, content in mnist_files.items()}
    assert sum(read_meta(tmp_path / "out").samples.values()) == 100
    assert load_split(tmp_path / "out", "train").shape == (1, 6, 6)
    before = files_of(tmp_path / "out")
    assert len(official.asked) == 4
    prepare(Prepare(task="mnist"), 1, tmp_path / "out", tmp_path / "raw")
    assert len(official.asked) == 4, "a second time nothing is fetched"
    assert files_of(tmp_path / "out") == before


@pytest.mark.parametrize("folder", ["", "mnist"])
@pytest.mark.parametrize("packed", [True, False], ids=["gz", "unpacked"])
def test_local_files_need_no_network_wherever_they_lie(site, official, mnist_files, tmp_path, folder, packed):
    raw = tmp_path / "raw" / folder
    raw.mkdir(parents=True)
    for name, content in mnist_files.items():
        path = raw / (name if packed else name.removesuffix(".gz"))
        path.write_bytes(content if packed else gzip.decompress(content))
    prepare(Prepare(task="mnist"), 1, tmp_path / "out", tmp_path / "raw")
    assert official.asked == []
    meta = read_meta(tmp_path / "out")
    assert meta.source == "mnist"
    prepare(Prepare(task="mnist"), 1, tmp_path / "fetched", tmp_path / "other")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fetched"), "the place and packing change no byte"


def test_offline_the_error_says_which_file_to_put_where(official, monkeypatch, tmp_path):
    monkeypatch.setitem(idx.SITES, "mnist", Site("http://127.0.0.1:1/", {}, "none"))
    message = refused(Prepare(task="mnist"), tmp_path)
    assert message.startswith(f"{tmp_path}/mnist/train-images-idx3-ubyte.gz: no such file")
    assert "http://127.0.0.1:1/train-images-idx3-ubyte.gz cannot be fetched" in message
    assert "put it there by hand, or set SIMIC_DATA_DIR" in message


def test_a_file_the_site_does_not_have_is_named(site, official, tmp_path):
    del official.files["train-labels-idx1-ubyte.gz"]
    with pytest.raises(SimicError, match=r"train-labels-idx1-ubyte\.gz cannot be fetched \(HTTP Error 404"):
        prepare(Prepare(task="mnist"), 1, tmp_path / "out", tmp_path)
    assert set(files_of(tmp_path)) == {"mnist/train-images-idx3-ubyte.gz"}, "t10k comes last: it never lies there alone"


@pytest.mark.parametrize("fault", ["other bytes", "ends early", "never answers"])
def test_a_bad_download_keeps_nothing(site, official, tmp_path, monkeypatch, fault):
    if fault == "other bytes":
        official.files["train-images-idx3-ubyte.gz"] += b"x"
    elif fault == "ends early":
        official.missing_bytes = 7
    else:
        official.silent = threading.Event()
        monkeypatch.setattr(published, "TIMEOUT_S", 0.2)
    message = refused(Prepare(task="mnist"), tmp_path)
    words = {"other bytes": "must be", "ends early": "IncompleteRead", "never answers": "timed out"}[fault]
    assert "train-images-idx3-ubyte.gz" in message and words in message


def test_files_of_the_other_set_are_not_mistaken(site, mnist_files, tmp_path):
    for name, content in mnist_files.items():
        (tmp_path / name).write_bytes(content)
    said = refused(Prepare(task="fashion_mnist"), tmp_path)
    assert "train-images-idx3-ubyte.gz: is a file of mnist, not of fashion_mnist" in said
