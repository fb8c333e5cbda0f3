"""A patch changes one place of a copy; one that does not fit is refused."""

from pathlib import Path

import pytest

from simic.errors import SimicError
from simic.selftest.fault import Patch
from simic.selftest.scratch import PACKAGE, copied, patched

SOURCE = "a = 1\nb = 1\n"


def test_the_copy_has_the_patch_and_the_package_has_not(tmp_path: Path) -> None:
    before = (PACKAGE / "errors.py").read_text()
    first = before.splitlines()[0]
    folder = copied(tmp_path, [Patch("errors.py", first, '"""Another line."""')])
    assert (folder / "simic" / "errors.py").read_text().startswith('"""Another line."""\n')
    assert (PACKAGE / "errors.py").read_text() == before
    assert (folder / "simic" / "rng.py").read_bytes() == (PACKAGE / "rng.py").read_bytes()


def test_a_text_that_is_not_there_once_is_refused() -> None:
    assert patched(SOURCE, Patch("x.py", "a = 1", "a = 2")) == "a = 2\nb = 1\n"
    for old, count in (("c = 1", 0), (" = 1", 2)):
        with pytest.raises(SimicError, match=f"x.py: the text to be patched is there {count} times, must be once"):
            patched(SOURCE, Patch("x.py", old, ""))


def test_what_is_no_python_is_refused() -> None:
    with pytest.raises(SimicError, match=r"x\.py: the patched source is no Python"):
        patched(SOURCE, Patch("x.py", "a = 1", "a = ("))
