"""Work in a thread, with signals in the main one: Prefect's SIGTERM handler stays in place and a cancel still saves."""

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

GRACE_SECONDS = 25.0  # Prefect kills 30 s after it asks


def run(work: Callable[[threading.Event], T], grace_seconds: float = GRACE_SECONDS) -> T:
    """Run ``work(stop)`` in a thread and wait for its result.

    Whatever interrupts the wait sets ``stop``, gives the thread time to save its state, and is raised again.
    """
    stop = threading.Event()
    future = Future[T]()
    context = (
        contextvars.copy_context()
    )  # Prefect's run context: loggers and artifacts work in the thread

    def body() -> None:
        try:
            future.set_result(context.run(work, stop))
        except BaseException as error:  # noqa: BLE001 - handed over to the waiting thread, which raises it
            future.set_exception(error)

    # A daemon: where the time is over the process ends, and the thread with it.
    threading.Thread(target=body, name="stage", daemon=True).start()
    try:
        return future.result()
    # Prefect cancels by an exception in this thread; training in the other one must save first.
    except BaseException:
        stop.set()
        # A signal to the group may follow one to this process; it must not cut the saving short.
        deadline = time.monotonic() + grace_seconds
        while not future.done() and time.monotonic() < deadline:
            with contextlib.suppress(BaseException):
                wait([future], deadline - time.monotonic())
        raise
