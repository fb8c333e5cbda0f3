"""Refuse what would not fit into memory, and recognise errors of what did not."""

import os
import resource
from pathlib import Path

from simic.errors import SimicError

GIB = 2**30
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def machine_bytes() -> int:
    """Measure the bytes this process may use: of the machine, its container or its own limit, whichever is least."""
    # A container's limit is in its control group, a user's in the limits of the process.
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [
        limit
        for limit in (resource.getrlimit(kind)[0] for kind in _LIMITS)
        if limit != resource.RLIM_INFINITY
    ]
    texts = [path.read_text(encoding="ascii").strip() for path in _CGROUPS if path.exists()]
    # A control group without a limit says max.
    return min(limits + [int(text) for text in texts if text.isdecimal()])


def refuse_too_much(name: str, size: int, remedy: str) -> None:
    """Refuse what cannot fit into memory, before it is read or made.

    Args:
        name: What it is.
        size: Bytes that it needs at least.
        remedy: What to lower.

    Raises:
        SimicError: There is less memory than that.
    """
    available = machine_bytes()
    if size > available:
        raise SimicError(
            f"{name}: at least {size / GIB:.1f} GiB, and there are {available / GIB:.1f} GiB of memory; lower {remedy}"
        )
