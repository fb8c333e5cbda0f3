"""Define the error that a user can cause: printed as a single line, exit code 2, no traceback."""

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 3  # asked to stop; the same command goes on


class SimicError(Exception):
    """Bad input or a refused operation; the message names the thing, its value and what is allowed, in one line that
    does nothing to a terminal, wherever it is logged.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class AuditFailed(SimicError):
    """The audit is written, and a finding is as grave as ``audit.fail_on``."""


class DecisionFault(SimicError):
    """The masks leave no choice, the policy's logits are not finite, or an action was played that the masks forbid."""


MEMORY_KEYS = (
    "runtime.cores, train.envs, train.batch_size or train.host"  # that decide how much a run takes
)

# Remedies of what the machine refuses; any other OSError is a defect of ours, and keeps its traceback.
REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have your quota raised",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "make it writable",
    errno.EACCES: "make it accessible",
    errno.EPERM: "make it accessible",
    errno.EIO: "look at the disk",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def is_memory_shortage(error: Exception) -> bool:
    """Tell whether Python, numpy or torch found no memory; torch has no type for it on a CPU."""
    return (
        isinstance(error, MemoryError)
        or "allocate memory" in str(error)
        or "out of memory" in str(error)
    )


def out_of_memory(error: Exception) -> str:
    """Say in one line what to lower after such an error."""
    # Some such errors have no message at all.
    cause = str(error).strip().splitlines() or ["no more to be had"]
    return f"out of memory ({cause[0]}); lower {MEMORY_KEYS}, or take smaller data"


@contextmanager
def exit_with_message(program: str) -> Iterator[None]:
    """Turn what the user can put right into one line on stderr and exit code 2."""
    try:
        yield
    # In the order of how much is known about the cause.
    except SimicError as error:
        reason = str(error)
    except (MemoryError, RuntimeError) as error:
        # Torch says RuntimeError to everything, a lack of memory included.
        if not is_memory_shortage(error):
            raise
        reason = out_of_memory(error)
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        remedy = (
            f"{REMEDIES[error.errno]} and run the same command again: what was finished is kept"
        )
        reason = f"{error.filename or 'a file'}: {error.strerror}; {remedy}"
    else:
        return
    print(f"{program}: {printable(reason)}", file=sys.stderr)
    sys.exit(EXIT_REFUSED)


_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
# Markup that a text could contain: inline marks, cells, tags, links, addresses that programs turn into links.
_MARKS = re.compile(r"[\\`*|~<>&#$@]|(?<!\w)_|_(?!\w)|\](?=[\[(])|^\[|(?<=:)/(?=/)|(?<=www)\.")


def printable(text: str) -> str:
    """Make a text one line, with what a terminal would obey made visible, and no user and password in addresses."""
    # As in a literal of Python: a log keeps every character, and no terminal obeys one.
    line = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )
    return _CREDENTIALS.sub("***@", line)


def as_markdown(text: str) -> str:
    """Escape a text from a user's data or params for Markdown."""
    return _MARKS.sub(lambda match: "\\" + match[0], printable(text))
