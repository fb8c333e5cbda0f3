"""Share hosts, and work on hosts, out to the cores of this machine."""

import math
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from simic import registry
from simic.errors import SimicError
from simic.growth.batch.population import Population
from simic.growth.batch.shards import Layout, ProcessLost, Shards, begin_process
from simic.params import Runtime
from simic.training import machine

T = TypeVar("T")

LEAST_GROUP = 4  # hosts: fewer would spend their time on dispatch


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


def layout(runtime: Runtime, hosts: int, device: torch.device, group: int | None = None) -> Layout:
    """Share hosts out to processes, and set the threads of this process.

    Hosts this small gain nothing from a second thread, and nearly a factor from a second process
    (docs/history/experiments.md).

    Args:
        runtime: Settings of this machine.
        hosts: How many there are.
        device: Where they are; only a CPU's are shared out.
        group: Hosts of a group; None: one group for each process.
    """
    if device.type != "cpu":
        if runtime.processes not in ("auto", 1):
            raise SimicError(
                f"runtime.processes = {runtime.processes}: must be auto or 1 with CUDA; torchrun starts one per GPU"
            )
        return Layout(hosts, hosts, 1)
    # Groups decide the last bits, processes only who computes them.
    processes = _processes(runtime)
    group = group or max(LEAST_GROUP, -(-hosts // processes))
    shared = Layout(hosts, min(group, hosts), min(processes, -(-hosts // group)))
    if runtime.threads == "auto":
        torch.set_num_threads(max(1, cores() // max(processes, hosts)))
    return shared


def population(runtime: Runtime, shared: Layout) -> Callable[..., Population | Shards]:
    """Choose what builds a population of that layout."""
    # One group is the population itself: a process around it would only cost.
    if shared.group == shared.hosts:
        return Population
    # As many threads as here, since their number decides the last bits.
    alike = runtime.model_copy(update={"threads": torch.get_num_threads(), "device": "cpu"})
    return partial(Shards, layout=shared, setup=partial(_prepare, alike, registry.extensions()))


def spread(work: Callable[[int], T], count: int, runtime: Runtime, device: torch.device) -> list[T]:
    """Do ``work`` of 0 … count-1, shared out to processes on a CPU.

    Args:
        work: What is done; it is pickled, and uses one process itself.
        count: How often.
        runtime: Settings of this machine.
        device: With another than a CPU all is done here.

    Raises:
        ProcessLost: A process ended; an interrupt ends them all.
    """
    processes = min(count, _processes(runtime)) if device.type == "cpu" else 1
    # To start a process takes longer than one piece of work may.
    if processes < 2:
        return [work(number) for number in range(count)]
    with pool(processes, runtime) as workers:
        return list(workers.map(work, range(count)))


@contextmanager
def beside(work: Callable[[], T], runtime: Runtime) -> Iterator[Callable[[], T]]:
    """Do picklable ``work`` in another process, where there are to be several; give what waits for its result."""
    if _processes(runtime) < 2:
        yield work
        return
    with pool(1, runtime) as workers:
        yield workers.submit(work).result


@contextmanager
def pool(processes: int, runtime: Runtime) -> Iterator[ProcessPoolExecutor]:
    """Start fresh processes of one thread each, with the settings and extensions of this one.

    Raises:
        ProcessLost: A process ended; an interrupt ends them all.
    """
    single = runtime.model_copy(update={"threads": 1, "device": "cpu"})
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


def _processes(runtime: Runtime) -> int:
    return cores() if runtime.processes == "auto" else runtime.processes


def _start(runtime: Runtime, extensions: tuple[Path, ...]) -> None:
    begin_process()
    _prepare(runtime, extensions)


def _prepare(runtime: Runtime, extensions: tuple[Path, ...]) -> None:
    """Set up another process as this one is."""
    machine.configure(runtime)
    for file in extensions:
        registry.load_extension(file)
