"""Planted faults as data: title, severity, and the patches or tampering that plant them."""

import ast
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import simic
from simic.errors import SimicError
from simic.pipeline.paths import Workspace
from simic.telemetry.rows import Severity

PACKAGE = Path(simic.__file__).parent
Family = Literal["maths", "plumbing", "data", "evaluation", "provenance", "resume", "scale", "real"]
When = Literal["prepare", "headroom", "interrupted", "train", "evaluate"]
FAMILIES: tuple[Family, ...] = get_args(Family)


@dataclass(frozen=True)
class Patch:
    """Describe a change of the source: ``old``, once in ``file`` (below ``simic/``), becomes ``new``."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Tampering:
    """Describe what is done to the files of a workspace, given that of another run, after a stage; "interrupted" is
    between an interruption of training and its resume.
    """

    after: When
    do: Callable[[Workspace, Workspace], None]


@dataclass(frozen=True)
class Fault:
    """Describe one fault; ``severity`` is the one the audit should give."""

    id: str
    family: Family
    title: str
    severity: Severity
    patches: tuple[Patch, ...] = ()
    tampering: Tampering | None = None


# Of one family by name: severity, title, and patches or one tampering.
Faults = Mapping[str, tuple[Severity, str, *tuple[Patch | Tampering, ...]]]


def _planted(severity: Severity, title: str, *changes: Patch | Tampering) -> tuple:
    return severity, title, *changes


critical, high, medium = (partial(_planted, severity) for severity in ("critical", "high", "medium"))


def planted(family: Family, faults: Faults) -> Iterator[Fault]:
    """Yield the faults of a family; ValueError for one without changes, or with two tamperings."""
    for name, (severity, title, *changes) in faults.items():
        patches = tuple(each for each in changes if isinstance(each, Patch))
        tamperings = [each for each in changes if isinstance(each, Tampering)]
        if not changes or len(tamperings) > 1:
            raise ValueError(f"fault {family}-{name}: needs a patch or one tampering")
        yield Fault(f"{family}-{name}", family, title, severity, patches, tamperings[0] if tamperings else None)


def copied(folder: Path, patches: Sequence[Patch]) -> Path:
    """Return the folder, now with a copy of the package that has the patches; SimicError where one does not apply."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name)
    for patch in patches:
        path = folder / PACKAGE.name / patch.file
        path.write_text(patched(path.read_text(encoding="utf-8"), patch), encoding="utf-8")
    return folder


def patched(source: str, patch: Patch) -> str:
    """Return the source with the patch; SimicError unless the old text is there once and the result is Python."""
    count = source.count(patch.old)
    if count != 1:
        raise SimicError(f"{patch.file}: the text to be patched is there {count} times, must be once: {patch.old!r}")
    changed = source.replace(patch.old, patch.new)
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise SimicError(f"{patch.file}: the patched source is no Python: {error}") from None
    return changed
