"""Where numba keeps the compiled loops: in a folder for each state of their sources."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numba import config

from simic.growth.networks import tabular

_FOLDER = Path(__file__).parent


@contextmanager
def kept_by_source() -> Iterator[None]:
    """Let numba cache functions that are made here, until any source of theirs changes.

    By itself it would notice only a change of the file in which the function stands, not of what that calls.
    """
    sources = [*sorted(_FOLDER.glob("*.py")), Path(tabular.__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    before = config.CACHE_DIR
    config.CACHE_DIR = str(Path(before or _FOLDER / "__pycache__") / digest[:16])
    try:
        yield
    finally:
        config.CACHE_DIR = before
