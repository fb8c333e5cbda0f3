"""The one error a user can cause: printed as a single line, exit code 2, no traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 3  # training was asked to stop, and can go on


class SimicError(Exception):
    """Bad input or a refused operation; the message names the thing, its value and what is allowed."""


class DecisionFault(SimicError):
    """The masks leave no choice, the policy's logits are not finite, or an action was played that the masks forbid."""


def printable(text: str) -> str:
    """The text in one line in which nothing acts on a terminal or on the order of letters: such characters are shown as
    escapes, ``\\x1b``.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


@contextmanager
def told_in_one_line(program: str) -> Iterator[None]:
    """For what is started from a shell: a SimicError ends it with one line on stderr and exit code 2."""
    try:
        yield
    except SimicError as error:
        print(f"{program}: {printable(str(error))}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
