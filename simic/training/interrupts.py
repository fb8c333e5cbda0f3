"""Ctrl-C and SIGTERM ask training to stop; a second one ends the process at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Training was asked to stop; ``saved`` iterations are on disk, ``begun`` were begun."""

    def __init__(self, saved: int, begun: int):
        again = f"; iteration {saved + 1} was not finished and will start again" if begun == saved + 1 else ""
        again = (
            f"; iterations {saved + 1} to {begun} were not saved and will be done again" if begun > saved + 1 else again
        )
        super().__init__(f"stopped with {saved} iterations saved{again}; to resume: simic train")


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets ``stop``; a second one acts as it did before.

    Only the main thread can have handlers; in any other one this does nothing, and whoever started it owns the signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in SIGNALS}

    asked = threading.Event()  # not stop itself: that may have been set by someone else before the first signal

    def handle(number: int, frame: FrameType | None) -> None:
        if not asked.is_set():
            asked.set()
            stop.set()
            return
        for each, handler in former.items():
            signal.signal(each, handler)
        signal.raise_signal(number)

    for number in SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
