"""Read files that a user names whole, if they are files at all and of a size that makes sense."""

import stat
from pathlib import Path

from simic.errors import SimicError


def read_file(path: Path, most: int, missing: str) -> bytes:
    """Read all bytes of a regular file. Anything else is never opened: a pipe would be waited for, a device has no end.

    Args:
        path: Of the file.
        most: Bytes that it may have.
        missing: The remedy where there is no file.

    Raises:
        SimicError: names what is wrong with the file.
    """
    try:
        # Asked before it is opened: opening a pipe would wait for a writer.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SimicError(f"{path}: must be a regular file, no directory, pipe or device")
        # Before a byte is read: a size of gigabytes is a wrong path.
        if status.st_size > most:
            raise SimicError(f"{path}: {status.st_size} bytes: must be at most {most}")
        with path.open("rb") as file:
            return file.read(status.st_size)  # not most: so many bytes would be allocated
    except FileNotFoundError:
        raise SimicError(f"{path}: no such file; {missing}") from None
    except OSError as error:
        raise SimicError(f"{path}: not readable: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise SimicError(f"{path}: not the path of a file: {error}") from None
