"""Changes of files as Python's audit hook sees them, just before they are made: where a process can be killed."""

import os
import sys
from collections.abc import Callable

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "shutil.copyfile"}


def observe(root: str, act: Callable[[str], None]) -> None:
    """From now on, until this process ends, ``act`` is told of every change below ``root``: where it is made."""

    def hook(event: str, given: tuple) -> None:
        writes = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not (writes or event in CHANGES):
            return
        place = next((each for each in given[:2] if _below(root, each)), None)
        if place is not None:
            act(str(place))

    sys.addaudithook(hook)


def _below(root: str, place: object) -> bool:
    """What is removed with a folder is named without it."""
    return isinstance(place, str | os.PathLike) and (str(place).startswith(root) or not os.path.isabs(place))
