"""Do independent work on several cores: compiled loops and torch's operations run outside Python's lock.

Threads share the memory of this process, so nothing is sent and nothing has to start. What is done must not depend on
how many there are: pieces are cut by whoever asks, and results come back in their order.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Generic, TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")
Own = TypeVar("Own")


class _Threads:
    """The threads beside the one that asks."""

    def __init__(self) -> None:
        self.helpers = 0
        self.pool: ThreadPoolExecutor | None = None
        # Whether a thread is at a piece already: what that asks for, it does itself.
        self.local = threading.local()


_threads = _Threads()


def set_count(count: int) -> None:
    """Set how many threads work at once in this process, the one that asks included; at first one."""
    # Every environment that is opened asks: the threads, and what each of them has built, stay.
    if count - 1 == _threads.helpers:
        return
    if _threads.pool is not None:
        _threads.pool.shutdown()
    _threads.helpers = count - 1
    _threads.pool = ThreadPoolExecutor(count - 1, "simic") if count > 1 else None


def count() -> int:
    """Tell how many threads work at once."""
    return _threads.helpers + 1


def share(work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
    """Do ``work`` on every piece, whoever is free the next one; results are in the order of the pieces.

    Args:
        work: Is called in several threads at once, under the asking thread's choice of whether gradients are recorded.
        pieces: What it is called with.

    Raises:
        Exception: The first one that ``work`` raised; nothing more is begun after it, and all threads have stopped.
    """
    numbered = list(enumerate(pieces))
    helpers = min(_threads.helpers, len(numbered) - 1)
    if helpers < 1 or getattr(_threads.local, "is_busy", False):
        return [work(piece) for _, piece in numbered]
    queue = iter(numbered)
    results: dict[int, Result] = {}
    records = torch.is_grad_enabled()

    def drain() -> None:
        _threads.local.is_busy = True
        try:
            with torch.set_grad_enabled(records):
                # One after the other takes from the same list: Python's lock lets no two have the same.
                for number, piece in queue:
                    results[number] = work(piece)
        finally:
            # After an error, nothing is left for the others.
            deque(queue, maxlen=0)
            _threads.local.is_busy = False

    assert _threads.pool is not None
    futures = [_threads.pool.submit(drain) for _ in range(helpers)]
    try:
        drain()
    finally:
        wait(futures)
    for future in futures:
        future.result()
    return [results[number] for number, _ in numbered]


class OwnOfThread(Generic[Own]):
    """An object of every thread's own, made when the thread first asks.

    Args:
        make: Makes one.
        initial: That of the thread which is here.
    """

    def __init__(self, make: Callable[[], Own], initial: Own) -> None:
        self._make = make
        self._local = threading.local()
        self._local.value = initial

    def __call__(self) -> Own:
        if not hasattr(self._local, "value"):
            self._local.value = self._make()
        return self._local.value
