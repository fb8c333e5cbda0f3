"""Refuse what would not fit into memory, before any of it is allocated."""

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simic.errors import SimicError

GIB = 2**30
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Need:
    """The least bytes that something takes, and the keys or the file that decide it."""

    what: str
    bytes: int
    decided_by: str


def machine_bytes() -> int:
    """Return the bytes this process may use: of the machine, its container or its own limit, whichever is least."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [limit for limit in (resource.getrlimit(kind)[0] for kind in _LIMITS) if limit != resource.RLIM_INFINITY]
    texts = [path.read_text(encoding="ascii").strip() for path in _CGROUPS if path.exists()]
    return min(limits + [int(text) for text in texts if text.isdecimal()])


def refuse_too_much(needs: Sequence[Need], available: int | None = None) -> None:
    """Raise SimicError naming the largest need where all exceed what is ``available`` (default: ``machine_bytes``)."""
    available = machine_bytes() if available is None else available
    total = sum(need.bytes for need in needs)
    if total > available:
        most = max(needs, key=lambda need: need.bytes)
        raise SimicError(
            f"{most.what}: at least {most.bytes / GIB:.1f} GiB of {total / GIB:.1f} GiB in all, and there are "
            f"{available / GIB:.1f} GiB of memory; lower {most.decided_by}"
        )
