"""Observes changes of files below a folder, just before they are made: a signal, or a full disk, at one.

Python imports this in every process that has the folder of this file on its path, so also in one that is DVC.
"""

import os
import signal
import sys
from pathlib import Path

CHANGES = {
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "shutil.copyfile",
}
CHANGES |= {"sqlite3.connect"}
BALLAST = "ballast"


def watch(
    root: str, at: int, count: Path, processes: tuple[int, ...], number: int = signal.SIGKILL
) -> None:
    """Signals processes at the change of that number, without any fills the disk; 0 = never, then all are counted."""
    changes, counter = 0, os.open(count, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def observe(event: str, arguments: tuple) -> None:
        nonlocal changes
        writes = (
            event == "open"
            and isinstance(arguments[2], int)
            and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if not (writes or event in CHANGES):
            return
        names = [
            os.fsdecode(argument)
            for argument in arguments[: 1 if writes else 2]
            if isinstance(argument, str | bytes | os.PathLike)
        ]
        # What is removed with a folder is named without it.
        if not any(name.startswith(root) or not os.path.isabs(name) for name in names):
            return
        changes += 1
        if at == 0:
            os.pwrite(counter, str(changes).encode(), 0)
        elif changes == at and not processes:
            fill(Path(root))
        elif changes == at:
            for process in processes:
                os.kill(process, number)

    sys.addaudithook(observe)  # stays for the life of the process


def fill(root: Path) -> None:
    """To the last byte: a file system counts its own tables too, so by trying."""
    with (root / BALLAST).open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


if "DISTURB_DVC" in os.environ and sys.orig_argv[-2:-1] == ["-f"]:  # dvc commit -f STAGE
    _root, _at, _how, _count = os.environ["DISTURB_DVC"].split(":")
    _processes = {"kill": (os.getppid(), os.getpid()), "stop": (os.getppid(),)}.get(_how, ())
    _number = signal.SIGTERM if _how == "stop" else signal.SIGKILL
    watch(_root, int(_at), Path(_count), _processes, _number)
