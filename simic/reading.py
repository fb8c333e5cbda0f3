"""Files that a user names are read whole, if they are files at all and of a size that makes sense."""

import stat
from pathlib import Path

from simic.errors import SimicError

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def read_file(path: Path, most: int, missing: str) -> bytes:
    """All bytes, at most so many; SimicError for anything else, ``missing`` says what to do where there is no file.

    What is no regular file is never opened: a pipe would be waited for, a device has no end.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SimicError(f"{path}: is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no file')}: must be a regular file")
        if found.st_size > most:
            raise SimicError(f"{path}: {found.st_size} bytes: must be at most {most}")
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise SimicError(f"{path}: no such file; {missing}") from None
    except OSError as error:
        raise SimicError(f"{path}: not readable: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise SimicError(f"{path}: not the path of a file: {error}") from None
