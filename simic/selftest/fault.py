"""A planted fault as data: what is wrong, how grave that is, and how it gets into the pipeline."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from simic.audit.known import Family
from simic.pipeline.paths import Workspace

Severity = Literal["low", "medium", "high", "critical"]
When = Literal["prepare", "headroom", "interrupted", "train", "evaluate"]
FAMILIES: tuple[Family, ...] = get_args(Family)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Patch:
    """A change of the source: ``old`` stands exactly once in ``file`` (below ``simic/``) and becomes ``new``."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Tampering:
    """What is done to the files of a workspace, given that of another run, behind a stage; "interrupted" is between an
    interruption of training and its resume.
    """

    after: When
    do: Callable[[Workspace, Workspace], None]


@dataclass(frozen=True)
class Fault:
    """One fault. ``severity`` is what an audit should give it, ``own`` marks those that no list of usual errors has."""

    id: str
    family: Family
    title: str
    severity: Severity
    patches: tuple[Patch, ...] = ()
    tampering: Tampering | None = None
    own: bool = False


def planted(
    family: Family,
    name: str,
    severity: Severity,
    title: str,
    *changes: Patch | Tampering,
    own: bool = False,
) -> Fault:
    """A fault of these changes; ValueError without any, or with two tamperings."""
    patches = tuple(each for each in changes if isinstance(each, Patch))
    tamperings = [each for each in changes if isinstance(each, Tampering)]
    if not changes or len(tamperings) > 1:
        raise ValueError(f"fault {family}-{name}: needs a patch or one tampering")
    return Fault(f"{family}-{name}", family, title, severity, patches, tamperings[0] if tamperings else None, own)
