"""Work in a thread, with signals in the main one: Prefect's SIGTERM handler stays in place and a cancel still saves."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

GRACE_SECONDS = 25.0  # Prefect kills 30 s after it asks


def run(work: Callable[[threading.Event], T], grace_seconds: float = GRACE_SECONDS) -> T:
    """Run ``work(stop)`` in a thread. Whatever interrupts the wait sets ``stop``, gives the thread time to save its
    state, and is raised again.
    """
    stop, future = threading.Event(), Future[T]()
    context = contextvars.copy_context()  # Prefect's run context: loggers and artifacts work in the thread

    def body() -> None:
        try:
            future.set_result(context.run(work, stop))
        except BaseException as error:  # noqa: BLE001 - handed over to the waiting thread, which raises it
            future.set_exception(error)

    threading.Thread(target=body, name="stage", daemon=True).start()
    try:
        return future.result()
    except BaseException:
        stop.set()
        wait([future], grace_seconds)  # no time at all where the work itself has raised
        raise
