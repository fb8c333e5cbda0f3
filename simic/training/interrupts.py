"""Let Ctrl-C, SIGTERM and a closed terminal ask a run to stop; a second one ends the process at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_SECONDS = 0.01


class Interrupted(Exception):
    """A stop was asked for; the message says what is kept, what is done again and how to go on."""


class _Stop(KeyboardInterrupt):
    """Not KeyboardInterrupt itself: where that one has left an ``exec``, as of a module that is being imported, Python
    dies of SIGINT at its exit though it was caught (CPython's ``unhandled_keyboard_interrupt``).
    """


def in_training(iterations: int, more: bool = False) -> Interrupted:
    """Say how many iterations are saved; ``more``: something was done after them."""
    again = "; what followed was not saved and will be done again" if more else ""
    return Interrupted(f"stopped with {iterations} iterations saved{again}; to resume: simic train")


@contextmanager
def stop_at_once(doing: str) -> Iterator[None]:
    """End work that is done from its start again at the first of SIGNALS; a second one acts as before.

    What it writes must not touch earlier outputs before it is whole.
    """
    # Where the handler runs in code that drops exceptions, the first signal would be lost.
    reported = sys.unraisablehook

    def stop(number: int) -> None:
        raise _Stop(number)

    with _first_signal(stop) as received:
        # In another thread there is no handler: the work goes on undisturbed.
        if received is None:
            yield
            return

        def ask_again(ignored: Any) -> None:
            """Ask again where Python drops what is raised: in a finalizer or a weak reference's callback."""
            if not isinstance(ignored.exc_value, _Stop):
                reported(ignored)
                return
            # As if no signal had come, or the repeated one would count as the second and end the process.
            received.clear()
            threading.Timer(
                AGAIN_SECONDS, os.kill, (os.getpid(), ignored.exc_value.args[0])
            ).start()

        # Until the end of the block a dropped stop is asked for again.
        sys.unraisablehook = ask_again
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped in {doing}: no output is left half-written; the same command goes on"
            ) from None
        finally:
            sys.unraisablehook = reported


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set ``stop`` at the first of SIGNALS; a second one acts as it did before."""
    with _first_signal(lambda number: stop.set()):
        yield


@contextmanager
def _first_signal(act: Callable[[int], None]) -> Iterator[threading.Event | None]:
    """Call ``act`` at the first of SIGNALS; a second one acts as it did before. Yield what says that one came.

    Only the main thread can have handlers; in any other one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    # A second signal does what it did before this block: by default it ends the process.
    former = {number: signal.getsignal(number) for number in SIGNALS}
    # nohup ignores it, so that the run outlives the terminal.
    if former[signal.SIGHUP] == signal.SIG_IGN:
        del former[signal.SIGHUP]
    received = threading.Event()

    def restore() -> None:
        # What comes from now on meets the handler that was there before the block.
        for number, handler in former.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        if not received.is_set():
            received.set()
            act(number)
        else:
            restore()
            signal.raise_signal(number)

    # Handlers stay as long as the block, whatever ends it.
    for number in former:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        restore()
