"""Share hosts, and work on hosts, out to the cores of this machine."""

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from simic import registry, threads
from simic.errors import SimicError
from simic.params import Runtime
from simic.training import machine

LEAST_GROUP = 4  # hosts: fewer would spend their time on dispatch


class ProcessLost(SimicError):
    """A process beside this one has ended."""


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Count the cores that this process may use.

    Args:
        quota: Linux says there how much time a container has: microseconds, or ``max``, in so many microseconds.
    """
    there = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        microseconds, period = quota.read_text().split()
        return max(1, min(there, math.ceil(int(microseconds) / int(period))))
    # No container, no limit, or no Linux.
    except (OSError, ValueError):
        return there


def hosts_together(
    runtime: Runtime, hosts: int, device: torch.device, group: int | None = None
) -> int:
    """Choose how many hosts are computed together, and set the threads of this process.

    Hosts this small gain nothing from a second thread inside an operation, and nearly a factor from a second group
    beside theirs (docs/history/experiments.md).

    Args:
        runtime: Settings of this machine.
        hosts: How many there are.
        device: Where they are; only a CPU's are shared out.
        group: As an earlier life of the run had it; None: one group for each core.

    Raises:
        SimicError: More than one core is asked for where hosts are on a GPU.
    """
    if device.type != "cpu":
        if runtime.cores not in ("auto", 1):
            raise SimicError(
                f"runtime.cores = {runtime.cores}: must be auto or 1 with CUDA; torchrun starts a process per GPU"
            )
        threads.set_count(1)
        return hosts
    # Groups decide the last bits, threads only who computes them.
    workers = _cores(runtime)
    threads.set_count(workers)
    if runtime.threads == "auto":
        torch.set_num_threads(max(1, cores() // max(workers, hosts)))
    return min(hosts, group or max(LEAST_GROUP, -(-hosts // workers)))


@contextmanager
def pool(processes: int, runtime: Runtime) -> Iterator[ProcessPoolExecutor]:
    """Start fresh processes of one thread each, with the settings and extensions of this one.

    Raises:
        ProcessLost: A process ended; an interrupt ends them all.
    """
    single = runtime.model_copy(update={"threads": 1, "cores": 1, "device": "cpu"})
    # A fresh process knows nothing of the files that were loaded here.
    start = partial(_start, single, registry.extensions())
    try:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), start) as workers:
            try:
                yield workers
            except KeyboardInterrupt:
                # Else the pool would wait for what they are at, which may take a minute.
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
    except BrokenProcessPool as error:
        raise ProcessLost("a process beside this one has ended; run it again") from error


def _cores(runtime: Runtime) -> int:
    return cores() if runtime.cores == "auto" else runtime.cores


def begin_process() -> None:
    """Leave Ctrl-C to the first process; end when the parent is gone."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _start(runtime: Runtime, extensions: tuple[Path, ...]) -> None:
    begin_process()
    machine.configure(runtime)
    for file in extensions:
        registry.load_extension(file)
