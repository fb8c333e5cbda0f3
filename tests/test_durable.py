"""A directory is either whole in place or not there; a lock is held by one process and leaves nothing."""

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from simic import durable
from simic.errors import SimicError


def test_a_path_that_cannot_be_written_is_refused_before(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "new" / "file"):
        assert durable.file_path(str(path)) == path
    words = "file: is a file, must be a folder; choose another path"
    for path in (tmp_path / "file" / "inside", tmp_path / "file" / "far" / "inside"):
        with pytest.raises(SimicError, match=words):
            durable.file_path(path)
    with pytest.raises(SimicError, match=f"{tmp_path}: is a folder, must be a file; choose"):
        durable.file_path(tmp_path)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("exchanging", [True, False], ids=["exchanged", "renamed"])
def test_a_new_directory_appears_whole_and_replaces_the_old_one(exchanging, tmp_path, monkeypatch):
    if not exchanging:  # another system, or another file system
        monkeypatch.setattr(durable, "exchange", lambda *_: False)
    target = tmp_path / "target"
    for content in (b"one", b"two"):
        with durable.new_directory(target) as folder:
            durable.write_synced(folder / "file", content)
            assert not target.exists() or (target / "file").read_bytes() == b"one"
        assert (target / "file").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_link_to_another_disk_stays_one(tmp_path):
    disk, link, file = (tmp_path / name for name in ("disk", "link", "file"))
    disk.mkdir()
    link.symlink_to(disk)
    file.symlink_to(disk / "file")
    with durable.new_directory(link) as folder:
        durable.write_synced(folder / "file", b"1")
    durable.replace_file(file, b"2")
    assert link.is_symlink() and file.is_symlink() and (disk / "file").read_bytes() == b"2"
    durable.remove_directory(link)
    with durable.new_directory(link) as folder:
        durable.write_synced(folder / "file", b"3")
    assert sorted(tmp_path.iterdir()) == [disk, file, link] and file.read_bytes() == b"3"


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_what_is_written_is_for_whom_the_umask_lets_read_it(umask, tmp_path):
    former = os.umask(umask)
    try:
        with durable.new_directory(tmp_path / "folder") as folder:
            durable.write_synced(folder / "file", b"1")
        durable.replace_file(tmp_path / "file", b"1")
    finally:
        os.umask(former)
    modes = [
        stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("folder", "folder/file", "file")
    ]
    assert modes == [0o777 & ~umask, 0o666 & ~umask, 0o666 & ~umask]


def test_what_is_replaced_is_there_all_the_time(tmp_path, monkeypatch):
    target, copy = tmp_path / "one", tmp_path / "other"
    target.mkdir()
    if not durable.exchange(target, Path(shutil.copytree(target, copy))):
        pytest.skip("two names cannot be exchanged here")
    with durable.new_directory(target) as folder:
        (folder / "file").write_text("new")
        monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("the target is moved away"))
    assert (target / "file").read_text() == "new" and sorted(tmp_path.iterdir()) == [target, copy]
    with pytest.raises(FileNotFoundError, match=r"nothing.*one"):
        durable.exchange(tmp_path / "nothing", target)


def test_what_a_killed_writer_left_is_cleared(tmp_path):
    (tmp_path / ".target.abc.tmp").mkdir()
    (tmp_path / ".target.abc.old").mkdir()
    (tmp_path / "..target.abc.tmp.def.tmp").mkdir()
    (tmp_path / ".target2.abc.tmp").mkdir()
    with durable.new_directory(tmp_path / "target"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".target2.abc.tmp", "target"]


def test_what_a_killed_writer_left_of_a_file_is_cleared_and_a_living_one_is_let_be(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    for process in (ended.pid, os.getppid(), 10**30):
        (tmp_path / f".file.{process}.tmp").write_bytes(b"half")
    durable.replace_file(tmp_path / "file", b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {
        f".file.{os.getppid()}.tmp",
        f".file.{10**30}.tmp",
        "file",
    }


def test_a_disk_that_is_full_is_named_by_what_could_not_be_written(tmp_path):
    """The system says at a write that the disk is full, and not of which file."""
    for writing, reported, expected in (
        (durable.naming(tmp_path / "file"), None, tmp_path / "file"),
        (durable.naming(tmp_path / "file"), "other", "other"),
        (durable.new_directory(tmp_path / "new"), None, tmp_path / "new"),
    ):
        with pytest.raises(OSError, match="No space") as full, writing:
            raise OSError(errno.ENOSPC, "No space left on device", reported)
        assert (full.value.filename, full.value.errno) == (str(expected), errno.ENOSPC)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_names_its_holder_and_its_file_goes_with_it(tmp_path):
    path = tmp_path / "new" / "lock"
    for fails in (False, True):
        with suppress(KeyError), durable.locked(path, "trains"):
            refusal = f"new: in use by process {os.getpid()} on .*, which trains; wait for it"
            with pytest.raises(durable.Held, match=refusal), durable.locked(path, "trains"):
                pytest.fail("two hold it")
            assert durable.holder(path) == os.getpid()
            if fails:
                raise KeyError
        assert list(path.parent.iterdir()) == []
    assert durable.holder(path) is None


def test_who_finds_a_lock_that_has_no_name_yet_waits_for_it(tmp_path, monkeypatch):
    """Its holder has it since just now."""
    path, slept = tmp_path / "lock", []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            path.write_text(f"process {os.getpid()} on this machine")

    monkeypatch.setattr(durable.time, "sleep", sleep)
    with durable.locked(path, "trains"):
        path.write_text("")
        assert durable.holder(path) == os.getpid() and len(slept) == 3
        path.write_text("")
        slept[:] = range(3)  # nobody writes it any more
        with (
            pytest.raises(durable.Held, match="in use by another process"),
            durable.locked(path, "trains"),
        ):
            pytest.fail("two hold it")
        assert len(slept) == 3 + durable.NAMELESS_LOOKS


@pytest.mark.parametrize(
    "name", [b"process 0 on x", b"process -1 on x", b"process x on y", b"process", b"\xff\0", b""]
)
def test_a_lock_whose_file_names_no_process_names_none(name, tmp_path, monkeypatch):
    """Whoever stops what it names would signal its own group, or everybody."""
    monkeypatch.setattr(durable, "NAMELESS_LOOKS", 0)
    path = tmp_path / "x.lock"
    with durable.locked(path, "works"):
        path.write_bytes(name)
        assert durable.holder(path) == 0
    path.mkdir()
    with pytest.raises(SimicError, match=r"x.lock: must be a file.*; remove it"):
        durable.holder(path)


def test_the_lock_file_of_a_killed_process_is_taken_over_or_removed(tmp_path):
    path = tmp_path / "lock"
    path.write_text("process 1 on a machine that lost its power")
    assert durable.holder(path) is None and not path.exists()
    path.write_text("process 1 on a machine that lost its power")
    with durable.locked(path, "trains"):
        assert durable.holder(path) == os.getpid()
    assert not path.exists()


def test_a_lock_file_removed_by_its_holder_while_another_takes_it_is_made_anew(
    tmp_path, monkeypatch
):
    """Else the next process would make a file of its own, and two would hold a lock."""
    path, flock = tmp_path / "lock", fcntl.flock

    def late(descriptor, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with durable.locked(path, "trains"):
        assert durable.holder(path) == os.getpid()


@pytest.mark.parametrize("change", [
    lambda text: text[:-1], lambda text: text + b" ", lambda text: text.replace(b'"a": 1', b'"a":  1'),
    lambda text: text.replace(b'"a": 1', b'"a": 1, "a": 1'), lambda text: text.replace(b'"a": 1', b'"a": 2'),
])  # fmt: skip
def test_a_checksum_holds_every_byte(change):
    written = durable.with_checksum({"a": 1, "b": [0.1, None, "é"]})
    assert durable.checked(written) == {"a": 1, "b": [0.1, None, "é"]}
    with pytest.raises(ValueError, match=r"."):
        durable.checked(change(written))


def test_what_is_put_aside_takes_the_place_of_what_was_put_aside_before(tmp_path):
    for k, make in enumerate((lambda path: path.mkdir(), lambda path: path.write_text("1"))):
        make(tmp_path / "a")
        assert (
            durable.put_aside(tmp_path / "a").name == "damaged-a" and not (tmp_path / "a").exists()
        )
        assert (tmp_path / "damaged-a").is_file() is bool(k)
