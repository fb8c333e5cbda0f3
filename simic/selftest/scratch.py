"""A copy of the package's source with patches applied, in which a pipeline is run."""

import ast
import shutil
from collections.abc import Sequence
from pathlib import Path

import simic
from simic.errors import SimicError
from simic.selftest.fault import Patch

PACKAGE = Path(simic.__file__).parent


def copied(folder: Path, patches: Sequence[Patch]) -> Path:
    """The folder, now with a copy of the package that has the patches; SimicError where one does not apply.

    Compiled files come along: their sources keep their times, and a patched one is compiled again.
    """
    shutil.copytree(PACKAGE, folder / PACKAGE.name)
    for patch in patches:
        apply(folder / PACKAGE.name, patch)
    return folder


def apply(package: Path, patch: Patch) -> None:
    """Changes one file in place; SimicError unless the old text is there exactly once and the new one is Python."""
    path = package / patch.file
    changed = patched(path.read_text(encoding="utf-8"), patch)
    path.write_text(changed, encoding="utf-8")


def patched(source: str, patch: Patch) -> str:
    """The source with the patch; SimicError unless the old text is there exactly once and the result is Python."""
    count = source.count(patch.old)
    if count != 1:
        raise SimicError(f"{patch.file}: the text to be patched is there {count} times, must be once: {patch.old!r}")
    changed = source.replace(patch.old, patch.new)
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise SimicError(f"{patch.file}: the patched source is no Python: {error}") from None
    return changed
