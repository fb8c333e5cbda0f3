"""Fills the disk just before the n-th write below a folder on it, and leaves it full.

Python imports this in every process that has the folder of this file on its path, so also in one that is DVC.
"""

import os
import sys
from pathlib import Path

BALLAST = "ballast"


class Writes:
    """Of this process below ``root``, counted from ``begin`` on; at number ``at`` the disk is full, 0 = never."""

    def __init__(self) -> None:
        self.root, self.at, self.seen, self.watching = Path("/"), 0, 0, False
        sys.addaudithook(self._hook)  # stays for the life of the process

    def begin(self, root: Path, at: int) -> None:
        self.root, self.at, self.seen, self.watching = root, at, 0, True

    def end(self) -> int:
        """How many there were."""
        self.watching = False
        return self.seen

    def _hook(self, event: str, given: tuple) -> None:
        if not self.watching or event not in ("open", "os.mkdir", "sqlite3.connect"):
            return
        if event == "open" and not (isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        name = os.fsdecode(given[0]) if isinstance(given[0], str | bytes | os.PathLike) else ""
        if not os.path.abspath(name).startswith(f"{self.root}/"):
            return
        self.seen += 1
        if self.seen == self.at:
            self.watching = False
            fill(self.root)


def fill(root: Path) -> None:
    """To the last byte: a file system counts its own tables too, so by trying."""
    with (root / BALLAST).open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


if "FULL_DVC_AT" in os.environ and sys.orig_argv[-2:-1] == ["-f"]:  # dvc commit -f STAGE
    _writes = Writes()
    _writes.begin(Path(os.environ["FULL_DVC_BELOW"]), int(os.environ["FULL_DVC_AT"]))
    import atexit

    atexit.register(lambda: Path(os.environ["FULL_DVC_COUNT"]).write_text(str(_writes.end())))
