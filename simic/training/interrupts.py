"""Ctrl-C and SIGTERM ask training to stop; a second one ends the process at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Training was asked to stop and its state is saved; the message says how to resume."""

    def __init__(self, iteration: int, resume_command: str = "simic train"):
        self.iteration = iteration
        self.resume_command = resume_command
        super().__init__(f"stopped after {iteration} iterations, the state is saved; to resume: {resume_command}")


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
