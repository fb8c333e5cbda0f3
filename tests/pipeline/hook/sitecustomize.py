"""Kills a process at its n-th change of a file below a folder, with whoever started it; counts them without a number.

Python imports this in every process that has the folder of this file on its path, so also in one that is DVC.
"""

import os
import signal
import sys
from pathlib import Path

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "shutil.copyfile"}


def watch(root: str, at: int, count: Path, kill: tuple[int, ...]) -> None:
    """From now on; ``at`` 0 = never. A kill comes just before the change is made."""
    seen, counter = 0, os.open(count, os.O_WRONLY | os.O_CREAT)

    def hook(event: str, given: tuple) -> None:
        nonlocal seen
        writes = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not (writes or event in CHANGES) or not any(_below(root, each) for each in given[:2]):
            return
        seen += 1
        if seen == at:
            for process in kill:
                os.kill(process, signal.SIGKILL)
        if at == 0:
            os.pwrite(counter, str(seen).encode(), 0)

    sys.addaudithook(hook)


def _below(root: str, place: object) -> bool:
    """What is removed with a folder is named without it."""
    return isinstance(place, str | os.PathLike) and (str(place).startswith(root) or not os.path.isabs(place))


if "KILL_DVC_AT" in os.environ and sys.orig_argv[-2:-1] == ["-f"]:  # dvc commit -f STAGE
    _root = os.environ["KILL_DVC_BELOW"]
    watch(_root, int(os.environ["KILL_DVC_AT"]), Path(_root + "-changes-of-dvc"), (os.getppid(), os.getpid()))
