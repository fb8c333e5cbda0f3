"""Write files that are either whole on disk or not there: synced, moved into place; locks; checksums."""

import ctypes
import errno
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import filelock

from simic.errors import SimicError

AT_FDCWD = -100  # of linux/fcntl.h
RENAME_EXCHANGE = 2  # of linux/fs.h


def user_path(path: str | Path) -> Path:
    """Make a path of what a caller gave: ``~`` is a home folder, as in a shell; SimicError where there is none."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, TypeError) as error:
        raise SimicError(f"path {path!r}: {error}") from None


def file_path(path: str | Path) -> Path:
    """Make a path of a file that a caller wants written; SimicError where it is a folder, or inside a file."""
    path = user_path(path)
    if path.is_dir():
        raise SimicError(f"{path}: is a folder, must be a file; choose another path")
    refuse_file_above(path)
    return path


def refuse_file_above(path: Path) -> None:
    """Raise SimicError where a folder on the way to a path is a file."""
    for folder in path.parents:
        if folder.exists() and not folder.is_dir():
            raise SimicError(f"{folder}: is a file, must be a folder; choose another path")


def sha256(path: Path) -> str:
    """Compute the hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(content: bytes) -> str:
    """Compute the hex digest of bytes in memory."""
    return hashlib.sha256(content).hexdigest()


def with_checksum(content: dict[str, Any]) -> bytes:
    """Write JSON with a checksum of itself, so that ``checked`` notices every changed byte."""
    checksum = sha256_of(json.dumps(content, sort_keys=True).encode())
    return (json.dumps({**content, "checksum": checksum}, indent=2) + "\n").encode()


def checked(written: bytes) -> dict[str, Any]:
    """Read what ``with_checksum`` wrote; ValueError for anything else."""
    try:
        # The checksum is one field, and the text must be exactly what would be written.
        content = json.loads(written)
    except RecursionError:
        raise ValueError("not JSON") from None
    if isinstance(content, dict):
        content.pop("checksum", None)
        if written == with_checksum(content):
            return content
    raise ValueError("its checksum does not match")


def database_damage(path: Path, table: str) -> str:
    """Say what is wrong with an SQLite database that has a table; empty where nothing is. It is not changed."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
            database.execute(f'SELECT count(*) FROM "{table}"')
    except sqlite3.Error as error:
        return str(error)
    return "" if answer == "ok" else answer


def write_synced(path: Path, content: bytes) -> None:
    """Write a new file and wait until its bytes are on disk; OSError as the system reports it, naming the file."""
    with naming(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of what could not be written to an OSError that has none: a full disk is reported without."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: what was there stays until the new bytes are on disk."""
    replace_files({path: content})


def replace_files(files: Mapping[Path, bytes]) -> None:
    """Write several files as one: none takes its place before the bytes of all are on disk."""
    # A link stays one: the file that it points to is replaced.
    files = {path.resolve(): content for path, content in files.items()}
    # With the process in the name: two writers never share a file, and one left by a dead process is known.
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in files}
    try:
        # The bytes of all files first, so that a full disk leaves everything as it was.
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _clear_temporaries(path)
            write_synced(temporary[path], content)
        # Then the names, each at once.
        for path, written in temporary.items():
            written.replace(path)
    finally:
        for written in temporary.values():
            written.unlink(missing_ok=True)
    # A rename is on disk when its folder is.
    for folder in {path.parent for path in files}:
        sync(folder)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a directory's entries (its renames), are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_full(directory: Path) -> None:
    """Raise SimicError where something is already that writing a directory would replace."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise SimicError(f"{directory}: already exists; choose another directory or remove it")


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling to fill; it is synced and renamed to ``target`` at the end. On an error it is deleted
    and target is as before.

    What was at ``target`` is replaced, then deleted. One writer per target: what a killed one left there
    is deleted first.
    """
    # A link stays one: what it points to is replaced, which may be on another disk.
    target = target.resolve()
    # A sibling is on the same file system, where a rename is one step.
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(target)
    # Not by tempfile: its folders are their owner's alone, whatever the umask lets a group do.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.mkdir()
    try:
        with naming(target):
            yield temporary
            _sync_tree(temporary)
        _replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(target.parent)


def _replace(temporary: Path, target: Path) -> None:
    """Put a directory in place. Where the file system can exchange two names, ``target`` is never missing."""
    # There is nothing to exchange with, and one rename is whole.
    if not target.exists():
        temporary.rename(target)
        return
    aside = temporary
    if not exchange(temporary, target):
        # Two renames: a process that is killed between them leaves both directories beside the free name.
        aside = temporary.with_suffix(".old")
        target.rename(aside)
        try:
            temporary.rename(target)
        except OSError:
            aside.rename(target)
            raise
    # Before the old one goes: a power cut might leave neither.
    sync(target.parent)
    _remove(aside)


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names at once; False, with nothing done, where the system cannot: only Linux can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    # Not Linux, or an old C library.
    except (AttributeError, OSError):
        return False
    if rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    # The kernel or the file system does not have the call.
    if number in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


def remove_directory(path: Path) -> None:
    """Remove a directory as a whole: a process that is killed meanwhile leaves all of it, or nothing under its name;
    the next removal deletes what it left.
    """
    path = path.resolve()
    _clear_leftovers(path)
    if path.exists():
        # First renamed: a half-removed directory would look like a damaged one.
        aside = path.with_name(f".{path.name}.{os.getpid()}.old")
        path.rename(aside)
        sync(path.parent)
        _remove(aside)


def clear_leftovers(folder: Path) -> None:
    """Delete what killed processes left of directories that ``remove_directory`` was removing from a folder."""
    for leftover in folder.glob(".*.old"):
        if leftover.is_dir():
            shutil.rmtree(leftover)


def put_aside(path: Path) -> Path:
    """Rename something damaged to ``damaged-…``, in place of an earlier one; return the new path."""
    # One of each name is enough to look at; more would fill the disk.
    aside = path.with_name(f"damaged-{path.name}")
    _remove(aside)
    return path.rename(aside)


def _remove(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def move_directory(path: Path, target: Path) -> None:
    """Move a directory to a free place in the same file system, synced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    # Both folders: a power cut might show it in both, or in none.
    sync(target.parent)
    sync(path.parent)


def _clear_leftovers(path: Path) -> None:
    """Delete what killed processes left of directories that were to get or to lose this name."""
    for dots in (
        ".",
        "..",
    ):  # what takes the place of a temporary directory has a temporary one beside that
        for leftover in path.parent.glob(f"{dots}{glob.escape(path.name)}.*.*"):
            if leftover.is_dir():
                shutil.rmtree(leftover)


def _clear_temporaries(path: Path) -> None:
    """Delete what killed processes of this machine left of a file that was to get this name."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        # The name has the number of the process: a living one is still writing.
        process = leftover.name.removesuffix(".tmp").rpartition(".")[2]
        if process.isdecimal() and not _is_running(int(process)):
            leftover.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        # Signal 0 asks whether there is one, and sends nothing.
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's, or no number of a process
        pass
    return True


def _sync_tree(folder: Path) -> None:
    # Contents before names: a folder on disk must not name files whose bytes are not there yet.
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


LONGEST_NAME = 300  # of a lock's holder
# How often, and after what pause, a lock is looked at whose holder has not written its name yet.
NAMELESS_LOOKS = 50
NAMELESS_SECONDS = 0.01


class Held(SimicError):
    """Another process holds the lock: ``pid`` (0 where it has not written it for a while)."""

    def __init__(self, message: str, pid: int = 0) -> None:
        super().__init__(message)
        self.pid = pid


@contextmanager
def locked(path: Path, doing: str, patience_seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock file, with this process's name in it.

    The file goes with the lock. The system frees the lock of a process that died; whoever is next takes its file over.

    Args:
        path: Of the file.
        doing: What the holder does, for the message of whoever wants it too.
        patience_seconds: To wait for another holder.

    Raises:
        Held: another process has the lock and the patience is over.
    """
    # A folder, or a pipe, would be waited for or fail in the library.
    if path.exists() and not path.is_file():
        raise SimicError(f"{path}: must be a file, which a running process makes; remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    looks = NAMELESS_LOOKS
    # Wait for the lock, or find out who has it.
    while not lock.is_locked:
        try:
            lock.acquire(timeout=patience_seconds)
        except filelock.Timeout:
            if not path.exists():  # it was given back just now
                continue
            refusal = _held(path, doing)
            if refusal.pid or not looks:
                raise refusal from None
            looks -= 1  # its holder has it since just now, and is about to write its name
            time.sleep(NAMELESS_SECONDS)
    # Hold it, with our name in it.
    try:
        with naming(path):
            path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield
    finally:
        # While it is still held: filelock notices when it has locked a file that has no name any more.
        path.unlink(missing_ok=True)
        lock.release()


def _held(path: Path, doing: str) -> Held:
    try:
        # The file may be empty for a moment, or go away just now.
        name = path.read_bytes()[:LONGEST_NAME].decode(errors="replace")
    except FileNotFoundError:
        name = ""
    # Somebody is sent signals by this number: 0 would be this process's own group, -1 everybody.
    match = re.fullmatch(r"process ([1-9]\d{0,9}) on .+", name)
    message = (
        f"{path.parent}: in use by {name if match else 'another process'}, which {doing}; "
        "wait for it, or stop it first"
    )
    return Held(message, int(match[1]) if match else 0)


def holder(path: Path) -> int | None:
    """Find the process id of a lock's holder, 0 while it is being written; None without one: its file is removed."""
    if not path.exists():
        return None
    # A process that died leaves its file. To take the lock is to find out, and removes it.
    try:
        with locked(path, "asks"):
            return None
    except Held as refusal:
        return refusal.pid
