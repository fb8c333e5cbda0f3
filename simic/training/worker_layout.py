"""Share hosts out to the cores of this machine."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from simic import registry
from simic.errors import SimicError
from simic.growth.batch.population import Population
from simic.growth.batch.shards import Layout, Shards
from simic.params import Runtime
from simic.training import machine

LEAST_GROUP = 4  # hosts: fewer would spend their time on dispatch


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def layout(runtime: Runtime, hosts: int, device: torch.device, group: int | None = None) -> Layout:
    """Return how so many hosts are shared out, in the groups that are given or in one for each process; set the threads
    of this process.

    Hosts this small gain nothing from a second thread, and nearly a factor from a second process
    (docs/history/experiments.md).
    """
    if device.type != "cpu":
        if runtime.processes not in ("auto", 1):
            asked = runtime.processes
            raise SimicError(f"runtime.processes = {asked}: must be auto or 1 with CUDA; torchrun starts one per GPU")
        return Layout(hosts, hosts, 1)
    asked = cores() if runtime.processes == "auto" else runtime.processes
    group = group or max(LEAST_GROUP, -(-hosts // asked))
    shared = Layout(hosts, min(group, hosts), min(asked, -(-hosts // group)))
    if runtime.threads == "auto":
        torch.set_num_threads(max(1, cores() // max(asked, hosts)))
    return shared


def population(runtime: Runtime, shared: Layout) -> Callable[..., Population | Shards]:
    """Return what builds a population of that layout."""
    if shared.group == shared.hosts:
        return Population
    own = runtime.model_copy(update={"threads": torch.get_num_threads(), "device": "cpu"})
    return partial(Shards, layout=shared, setup=partial(_prepare, own, registry.extensions()))


def _prepare(runtime: Runtime, extensions: tuple[Path, ...]) -> None:
    """Set up another process as this one is."""
    machine.configure(runtime)
    for file in extensions:
        registry.load_extension(file)
