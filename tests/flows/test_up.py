"""`make serve` refuses files of Prefect that are damaged, in one line, before it starts anything."""

from pathlib import Path

import pytest

from flows import up
from simic.errors import SimicError


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (up.SETTINGS_FILE, b"[api"),
        (up.SETTINGS_FILE, b"\xff"),
        (up.PROFILES_FILE, b"active = "),
        (up.DATABASE, bytes(5000)),
    ],
    ids=repr,
)
def test_a_damaged_file_is_named(
    file: Path, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    up._ensure_password()
    up._ensure_password()  # what it has written itself is good
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    with pytest.raises(SimicError, match=f"{file.name}: .*; (repair or remove|move) it"):
        up._ensure_password()
