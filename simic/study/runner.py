"""Compute the cells of a study in other processes: those of this machine, or Dask's."""

import importlib.util
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from simic import durable
from simic.errors import EXIT_INTERRUPTED, SimicError
from simic.study import cells
from simic.study.cells import Cell
from simic.training.interrupts import Interrupted

POLL_SECONDS = 0.5
GRACE_SECONDS = 25.0  # an iteration of training ends, and its checkpoint is written
Ended = Callable[[Cell, str], bool]  # told of a cell that no process computes any more, and why; whether to go on


def refuse_unknown(runner: str) -> None:
    """Raise SimicError where there is no such runner, or it is not installed."""
    if runner not in ("processes", "dask"):
        raise SimicError(f"--runner {runner!r}: must be processes or dask")
    if runner == "dask" and importlib.util.find_spec("distributed") is None:
        raise SimicError("--runner dask: distributed is not installed; pip install 'simic-grow[dask]'")


def run_all(
    runner: str, cells_left: Sequence[Cell], folder: Path, workers: int, stop: threading.Event, ended: Ended
) -> None:
    """Compute as many cells at a time as there are workers; return early when asked to stop or when a process died."""
    finished: queue.SimpleQueue[Future[None]] = queue.SimpleQueue()
    left, running, more = deque(cells_left), dict[Future[None], Cell](), True
    with _executor(runner, workers) as executor:
        while running or (left and more and not stop.is_set()):
            while left and more and len(running) < workers and not stop.is_set():
                cell = left.popleft()
                future = executor.submit(compute, cell, folder)
                running[future] = cell
                future.add_done_callback(finished.put)
            try:
                future = finished.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if stop.is_set():
                    # Training in them saves its state; the executor waits for their end.
                    for process in multiprocessing.active_children():
                        process.terminate()
                    return
                continue
            error = future.exception()
            more = ended(running.pop(future), f"{type(error).__name__}: {error}" if error else "") and more


def compute(cell: Cell, folder: Path) -> None:
    """Compute one cell, and leave the reason in its folder when it fails. A process that was asked to stop ends: the
    pool, when another one died, waits for that.
    """
    failure = folder / cell.fingerprint / cells.FAILURE
    failure.unlink(missing_ok=True)
    try:
        cells.run(cell, folder)
    except Interrupted:
        os._exit(EXIT_INTERRUPTED)
    except Exception as error:
        reason = str(error) if isinstance(error, SimicError) else traceback.format_exc()
        durable.replace_file(failure, reason.encode())
        raise


@contextmanager
def _executor(runner: str, workers: int) -> Iterator[Executor]:
    """Start the machine's processes, or use Dask: a cluster of this machine, or the one of DASK_SCHEDULER_ADDRESS."""
    if runner == "processes":
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, spawn, initializer=follow_the_study) as executor:
            yield executor
        return
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "error")  # the study prints its own progress
    from distributed import Client  # pyright: ignore[reportMissingImports] - an extra

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    local = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with Client(address) if address else Client(**local) as client:
        yield client.get_executor()


def follow_the_study() -> None:
    """Let the study alone stop a new process of the pool, and end it when the study ends."""
    os.setpgrp()  # Ctrl-C is for the study, which then tells its processes, once
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INTERRUPTED))
    threading.Thread(target=_end_with_the_study, daemon=True).start()


def _end_with_the_study() -> None:
    study = multiprocessing.parent_process()
    assert study is not None
    study.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(EXIT_INTERRUPTED)
