"""What ``prepare`` says of data that it refuses."""

from pathlib import Path

import pytest

from simic.data.prepare import prepare
from simic.errors import SimicError
from simic.params import Prepare


def refused(params: Prepare, folder: Path) -> str:
    """Return the one line in which preparing data of a folder is refused; nothing in it has changed."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(SimicError) as caught:
        prepare(params, 1, folder / "out", folder)
    assert sorted(folder.rglob("*")) == before, "something was written"
    assert "\n" not in str(caught.value)
    return str(caught.value)
