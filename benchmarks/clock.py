"""Seconds of the calls of a running program, by name, and of several programs in turns."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch


class Clock:
    """Adds up what watched calls take; a watched call inside another counts for itself alone. ``settle`` is called
    around each, to wait for a device.
    """

    def __init__(self, settle: Callable[[], object] = lambda: None) -> None:
        self.settle = settle
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._inside: list[float] = []  # seconds of watched calls within each open one
        self._undo: list[tuple[object, str, Any]] = []

    def watch(self, owner: object, method: str, name: str) -> None:
        """Time every call of ``owner.method`` from now on."""
        call = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.settle()
            started = time.perf_counter()
            self._inside.append(0.0)
            try:
                return call(*args, **kwargs)
            finally:
                self.settle()
                taken = time.perf_counter() - started
                own = taken - self._inside.pop()
                if self._inside:
                    self._inside[-1] += taken
                self.seconds[name] = self.seconds.get(name, 0.0) + own
                self.calls[name] = self.calls.get(name, 0) + 1

        self._undo.append((owner, method, call))
        setattr(owner, method, timed)

    def stop(self) -> None:
        """Everything as it was."""
        for owner, method, call in reversed(self._undo):
            setattr(owner, method, call)
        self._undo.clear()


def in_turns(work: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Return the median seconds of each, A B A B …, after one turn that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, go in work.items():
            started = time.perf_counter()
            go()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:
                taken[name].append(time.perf_counter() - started)
    return {name: median(times) for name, times in taken.items()}
