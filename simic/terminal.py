"""How commands speak to a terminal, and where they run."""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from simic.errors import EXIT_INTERRUPTED, printable

if TYPE_CHECKING:
    from simic.pipeline.paths import Workspace

T = TypeVar("T")


def interruptible(body: Callable[[], T], doing: str) -> T:
    """What was asked to stop, and has saved what it saves, exits with a code of its own."""
    from simic.training.interrupts import Interrupted, stop_at_once

    try:
        with stop_at_once(doing):
            return body()
    except Interrupted as stopped:
        print(printable(f"simic: {stopped}"), file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def workspace() -> "Workspace":
    """The current folder."""
    from pathlib import Path

    from simic.pipeline import paths

    return paths.Workspace(Path.cwd())


RED, PLAIN = "\x1b[1;31m", "\x1b[0m"


def say(text: str, alarming: bool = False) -> None:
    """At once, with what a terminal would obey made visible; in red on a terminal where it is ``alarming``."""
    coloured = alarming and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line in text.split("\n"):
        before, after = (RED, PLAIN) if coloured else ("", "")
        print(before + printable(line) + after, flush=True)
