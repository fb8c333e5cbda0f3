"""Planted faults as data: what is wrong, the patches that plant it, and the tests that must notice it."""

import ast
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "simic"  # not imported: the process that tries a fault imports the patched copy
Family = Literal["maths", "plumbing", "data", "evaluation", "provenance", "resume", "scale", "real"]
FAMILIES: tuple[Family, ...] = get_args(Family)


@dataclass(frozen=True)
class Patch:
    """A change of the source: ``old``, once in ``file`` (below ``simic/``), becomes ``new``."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """One fault; ``tests`` are the files or tests (below ``tests/``) of which one must fail, tried in that order."""

    id: str
    title: str
    patches: tuple[Patch, ...]
    tests: tuple[str, ...]


# The faults of one family by name.
Faults = Mapping[str, tuple[str, str | tuple[str, ...], *tuple[Patch, ...]]]


def fault(title: str, tests: str | tuple[str, ...], *patches: Patch) -> tuple:
    """Describe one fault of a family.

    Args:
        title: what is wrong, as a sentence
        tests: the file or test that must fail, or several, the likeliest first
        patches: what plants it
    """
    return title, tests, *patches


def planted(family: Family, faults: Faults) -> Iterator[Fault]:
    """Name the faults of a family; ValueError for one without a patch."""
    for name, (title, tests, *patches) in faults.items():
        if not patches:
            raise ValueError(f"fault {family}-{name}: needs a patch")
        yield Fault(
            f"{family}-{name}", title, tuple(patches), (tests,) if isinstance(tests, str) else tests
        )


def write_patched(folder: Path, patches: Sequence[Patch]) -> None:
    """Copy the package into ``folder`` with the patches in it; ValueError where one does not apply."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for patch in patches:
        path = folder / PACKAGE.name / patch.file
        path.write_text(patched(path.read_text(encoding="utf-8"), patch), encoding="utf-8")


def patched(source: str, patch: Patch) -> str:
    """Patch a source text; ValueError unless the old text is there once and the result is Python."""
    count = source.count(patch.old)
    if count != 1:
        raise ValueError(
            f"{patch.file}: the text to be patched is there {count} times, must be once: {patch.old!r}"
        )
    changed = source.replace(patch.old, patch.new)
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise ValueError(f"{patch.file}: the patched source is no Python: {error}") from None
    return changed
