"""The cells of a study as tasks of a Prefect flow, on a pool of processes or on Dask.

To be imported once a server is named (simic.study.server): Prefect reads its settings then.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import CancelledRun, PrefectException
from prefect.futures import PrefectFuture
from prefect.states import Cancelled
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner

from simic.errors import EXIT_INTERRUPTED, SimicError
from simic.study import cells
from simic.study.cells import Cell
from simic.training.interrupts import Interrupted, stop_on_signals

TROUBLE = (PrefectException, httpx.HTTPError, OSError)
POLL_SECONDS = 0.5
GRACE_SECONDS = 25.0  # an iteration of training ends, and its checkpoint is written
Ended = Callable[[Cell, str], bool]  # told of a cell that no process computes any more, and why; whether to go on


@task(name="cell", cache_policy=NO_CACHE, persist_result=False)
def compute(cell: str, folder: str) -> State[None] | None:
    """One cell, given as JSON; its result is on disk."""
    try:
        cells.attempt(Cell.model_validate_json(cell), Path(folder))
    except Interrupted:
        return Cancelled(message="asked to stop; it goes on from its checkpoint")
    return None


@dataclass(frozen=True)
class Work:
    """What a flow run computes and where; ``stop`` asks it to end early."""

    left: Sequence[Cell]
    folder: Path
    workers: int
    stop: threading.Event
    ended: Ended


WORK: ContextVar[Work] = ContextVar("work")  # no parameter: those are pickled into each task of the flow


@flow
def study() -> State[None] | None:
    """The cells of the work, as many at a time as there are workers; returns early when asked to stop or when a
    process died.
    """
    return _pursued()  # by name alone: what the body of a flow refers to is pickled with it


def _pursued() -> State[None] | None:
    work = WORK.get()
    with stop_on_signals(work.stop):  # in place of Prefect's, which end the flow at once
        _submit(work)
    return Cancelled(message="asked to stop") if work.stop.is_set() else None


def run_all(work: Work, runner: str) -> None:
    """One flow run; SimicError where Prefect's server does not answer."""
    token = WORK.set(work)
    named = study.with_options(task_runner=_runner(runner, work.workers), flow_run_name=work.folder.name)
    try:
        with contextlib.suppress(CancelledRun):
            named()
    except TROUBLE as error:
        said = " ".join(str(error).split())
        raise SimicError(f"Prefect does not answer: {said}; the same command goes on") from None
    finally:
        WORK.reset(token)


def _submit(work: Work) -> None:
    through: queue.SimpleQueue[PrefectFuture[Any]] = queue.SimpleQueue()
    left, running, more = deque(work.left), dict[Any, Cell](), True
    while running or (left and more and not work.stop.is_set()):
        while left and more and len(running) < work.workers and not work.stop.is_set():
            cell = left.popleft()
            named = compute.with_options(task_run_name=cell.fingerprint)
            future = named.submit(cell.model_dump_json(), str(work.folder))
            running[future.task_run_id] = cell
            future.add_done_callback(through.put)
        try:
            future = through.get(timeout=POLL_SECONDS)
        except queue.Empty:
            if work.stop.is_set():
                _stop_workers()
                return
            continue
        more = work.ended(running.pop(future.task_run_id), _reason(future)) and more


def _reason(future: PrefectFuture[Any]) -> str:
    """What a task ended with if not a result: its own error, or what became of its process."""
    try:
        found = future.result(raise_on_failure=False)
    except Exception as error:  # noqa: BLE001 - of Prefect, the pool, Dask or pickle: each has its own
        found = error
    return f"{type(found).__name__}: {found}" if isinstance(found, BaseException) else ""


def _stop_workers() -> None:
    """Training in them saves its state; the pool waits for their end when the flow closes it."""
    for process in multiprocessing.active_children():
        process.terminate()


def _runner(name: str, workers: int) -> TaskRunner[Any]:
    """Of the machine's processes, or of Dask: a cluster of this machine, or the one of DASK_SCHEDULER_ADDRESS."""
    if name == "processes":
        return ProcessPoolTaskRunner(max_workers=workers, initializer=follow_the_study)
    from prefect_dask.task_runners import DaskTaskRunner  # pyright: ignore[reportMissingImports] - an extra

    if address := os.environ.get("DASK_SCHEDULER_ADDRESS"):
        return DaskTaskRunner(address=address)
    one_each = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    return DaskTaskRunner(cluster_kwargs=one_each)


def follow_the_study() -> None:
    """In a new process of the pool: the study alone tells it to stop, and it ends when the study does."""
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
