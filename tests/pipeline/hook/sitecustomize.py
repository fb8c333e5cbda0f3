"""Observes changes of files below a folder, just before they are made: a process is killed at one, or the disk is full.

Python imports this in every process that has the folder of this file on its path, so also in one that is DVC.
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "shutil.copyfile"}
BALLAST = "ballast"


class Observed:
    """Calls ``act`` with the kind of each change and its place; "write" is an opening by Python's own ``open``."""

    def __init__(self, root: str, act: Callable[[str, str], None]) -> None:
        self.root, self.act = root, act
        sys.addaudithook(self._hook)  # stays for the life of the process

    def _hook(self, event: str, given: tuple) -> None:
        writes = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not (writes or event in CHANGES or event == "sqlite3.connect"):
            return
        kind = "write" if writes and given[1] is not None else event
        names = [
            os.fsdecode(each) for each in given[: 1 if writes else 2] if isinstance(each, str | bytes | os.PathLike)
        ]
        for name in names:  # what is removed with a folder is named without it
            if name.startswith(self.root) or not os.path.isabs(name):
                self.act(kind, name)
                return


def watch(root: str, at: int, count: Path, kill: tuple[int, ...]) -> None:
    """Kills processes at the change of that number; 0 = none, then all are counted."""
    seen, counter = 0, os.open(count, os.O_WRONLY | os.O_CREAT)

    def act(kind: str, place: str) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            for process in kill:
                os.kill(process, signal.SIGKILL)
        if at == 0:
            os.pwrite(counter, str(seen).encode(), 0)

    Observed(root, act)


class Writes:
    """Writes of this process below a folder, from ``begin`` on; at number ``at`` the disk is full, 0 = never."""

    def __init__(self) -> None:
        self.at, self.seen, self.watching = 0, 0, False
        self.observed = Observed("", self._act)

    def begin(self, root: Path, at: int) -> None:
        self.observed.root, self.at, self.seen, self.watching = f"{root}/", at, 0, True

    def end(self) -> int:
        """How many there were."""
        self.watching = False
        return self.seen

    def _act(self, kind: str, place: str) -> None:
        if self.watching and kind in ("open", "write", "os.mkdir", "sqlite3.connect"):
            self.seen += 1
            if self.seen == self.at:
                self.watching = False
                fill(Path(self.observed.root))


def fill(root: Path) -> None:
    """To the last byte: a file system counts its own tables too, so by trying."""
    with (root / BALLAST).open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


_COMMIT = sys.orig_argv[-2:-1] == ["-f"]  # dvc commit -f STAGE
if "KILL_DVC_AT" in os.environ and _COMMIT:
    _root = os.environ["KILL_DVC_BELOW"]
    watch(_root, int(os.environ["KILL_DVC_AT"]), Path(_root + "-changes-of-dvc"), (os.getppid(), os.getpid()))
if "FULL_DVC_AT" in os.environ and _COMMIT:
    _writes = Writes()
    _writes.begin(Path(os.environ["FULL_DVC_BELOW"]), int(os.environ["FULL_DVC_AT"]))
    atexit.register(lambda: Path(os.environ["FULL_DVC_COUNT"]).write_text(str(_writes.end())))
