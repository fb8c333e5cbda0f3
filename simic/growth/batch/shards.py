"""A population shared out to processes of this machine, which keep its hosts and work side by side.

Hosts are cut into groups in the order of their ids, and a group is one ``Population`` in whichever process it lives. A
host's last bits depend on its group, not on the process: the same groups give the same run on any number of cores. The
processes are those of the standard library's executors, one each, so that a host's state is always where it was left.
"""

import io
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from simic.data.batches import Dataset
from simic.errors import SimicError
from simic.growth.batch.forward import Backend
from simic.growth.batch.groups import Flags, SlotState
from simic.growth.batch.population import Answers, Population, Snapshot, flags_of
from simic.growth.batch.statistics import TrainStats
from simic.growth.life.vocabulary import Slots
from simic.growth.networks.blueprints import Blueprint, blueprints_of
from simic.growth.networks.hosts import HostSpec, build_host
from simic.params import Host, HostOptimizer

RESTARTS = 3  # of lost processes, in one episode

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ProcessLost(SimicError):
    """A process that held hosts is gone, and their state with it."""


@dataclass(frozen=True)
class Layout:
    """How many hosts there are, how many form a group, and how many processes share the groups."""

    hosts: int
    group: int
    processes: int


@dataclass(frozen=True)
class Recipe:
    """What another process builds its groups from: names, as builders of a user's modules may not be picklable."""

    setup: Callable[[], object]
    blueprints: tuple[Blueprint, ...] | None  # None: those of the family
    host: Host
    input_shape: tuple[int, ...]
    classes: int
    counts: tuple[int, int]
    how: tuple[int, HostOptimizer, str, Backend]  # of Population

    def build(self, env_ids: Tensor) -> "Group":
        """Build a group; nothing is counted or tried, for which torch would import its compiler (2 seconds)."""
        host = build_host(self.host, self.input_shape, self.classes, self.counts)
        kinds = self.blueprints or blueprints_of(self.host.family)
        return Group(Population(host, kinds, env_ids, *self.how, checked=True))


@dataclass(frozen=True)
class HeldByName(Snapshot):
    """Something that every process keeps under this name: a data set, or a snapshot of its hosts."""

    name: int


class Group:
    """Some hosts, with the data and the last snapshot that they were asked to keep by name."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.data: dict[int, Dataset] = {}
        self.snapshots: dict[int, Snapshot] = {}

    def call(self, method: str, arguments: list) -> Any:
        """Return what the method gives, of this group or else of its population, with kept things for their names."""
        known = self.data | self.snapshots
        given = [known[each.name] if isinstance(each, HeldByName) else each for each in arguments]
        return getattr(self if hasattr(self, method) else self.population, method)(*given)

    def remember(self, name: int, data: Dataset) -> None:
        self.data[name] = data

    def reset(self, rng_seed: int, *given: Any) -> None:
        self.population.rng_seed = rng_seed
        self.population.reset(*given)

    def snapshot(self, name: int) -> None:
        self.snapshots = {name: self.population.snapshot()}

    def evaluate(self, slots: Slots, data: Dataset, off: Flags, state: SlotState) -> Answers:
        """Evaluate ``off [E, Cfg, K]``, hosts first, as all that is cut into groups."""
        return self.population.evaluate(slots, data, off.swapaxes(0, 1), state)


class Shards:
    """A ``Population`` in several processes; this one works on the first groups itself."""

    def __init__(
        self,
        host: HostSpec,
        blueprints: tuple[Blueprint, ...],
        env_ids: Tensor,
        rng_seed: int,
        optimizer: HostOptimizer,
        device: torch.device | str = "cpu",
        backend: Backend = "auto",
        *,
        layout: Layout,
        setup: Callable[[], object],
    ) -> None:
        self.host, self.blueprints, self.env_ids, self.rng_seed = host, blueprints, env_ids, rng_seed
        self.group, self.layout = len(env_ids), layout
        self._how = rng_seed, optimizer, "cpu", backend
        registered = None if blueprints == blueprints_of(host.config.family) else blueprints
        what = host.config, host.input_shape, host.classes
        self._recipe = Recipe(setup, registered, *what, (host.params, host.flops_per_sample), self._how)
        starts = range(0, len(env_ids), layout.group)
        self._hosts = [slice(start, min(start + layout.group, len(env_ids))) for start in starts]
        self._owners = [part.tolist() for part in np.array_split(np.arange(len(self._hosts)), layout.processes)]
        self._workers: list[ProcessPoolExecutor] = []
        self._start()

    def __len__(self) -> int:
        return len(self.env_ids)

    def _start(self) -> None:
        """Start the processes; every host waits for its first reset."""
        self._names, self._known = 0, dict[int, tuple[HeldByName, Dataset]]()
        context = multiprocessing.get_context("spawn")
        self._workers = [ProcessPoolExecutor(1, context, begin_process) for _ in self._owners[1:]]
        own, *others = [{index: self.env_ids[self._hosts[index]] for index in owned} for owned in self._owners]
        waiting = [
            worker.submit(_build, _packed((self._recipe, groups)))
            for worker, groups in zip(self._workers, others, strict=True)
        ]
        self._own = {
            index: Group(Population(self.host, self.blueprints, ids, *self._how)) for index, ids in own.items()
        }
        try:
            with _process_losses():
                for future in waiting:
                    future.result()
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """Start new processes for lost ones; every host has to be reset."""
        self.close()
        self._start()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)
        self._workers = []

    # --- what a population can do: each method is that of ``Population``, of all hosts ---

    def reset(self, iteration: int, tasks: Tensor | None = None, env_ids: Tensor | None = None) -> None:
        self.env_ids = self.env_ids if env_ids is None else env_ids
        self._all("reset", self.rng_seed, iteration, tasks, env_ids)

    def germinate(self, slots: Slots, rows: Tensor | Flags, data: Dataset, state: SlotState | None = None) -> None:
        chosen = flags_of(rows)
        if chosen.any():
            self._all("germinate", slots, chosen, self._held(data), state or SlotState.read(slots))

    def aligned(self, data: Dataset) -> Tensor:
        return torch.cat(self._all("aligned", self._held(data)))

    def train_epoch(self, slots: Slots, data: Dataset, order: Tensor, state: SlotState | None = None) -> TrainStats:
        parts = self._all("train_epoch", slots, self._held(data), order, state or SlotState.read(slots))
        return TrainStats.joined(parts)

    def evaluate(self, slots: Slots, data: Dataset, off: Tensor | Flags, state: SlotState | None = None) -> Answers:
        by_host = flags_of(off).swapaxes(0, 1)
        parts = self._all("evaluate", slots, self._held(data), by_host, state or SlotState.read(slots))
        return Answers(torch.cat([part.correct for part in parts], 1), torch.cat([part.loss for part in parts], 1))

    def snapshot(self) -> Snapshot:
        """Keep a snapshot in every process; the one before is forgotten."""
        self._names += 1
        self._all("snapshot", self._names)
        return HeldByName({}, self._names)

    def refresh(self, snapshot: Snapshot, rows: Tensor, slots: Slots) -> None:
        self._all("refresh", snapshot, rows, slots)

    def restore(self, snapshot: Snapshot, rows: Tensor) -> None:
        self._all("restore", snapshot, rows)

    def named_parameters(self, slots: Slots, row: int) -> dict[str, Tensor]:
        index = row // self.layout.group
        hosts = self._hosts[index]
        [tensors] = self._do({index: ("named_parameters", [_part(slots, hosts), row - hosts.start])})
        return tensors

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that mutates; it is the same however hosts are shared out."""
        return self._joined(self._all("state_dict")) | {"group": torch.tensor(self.group)}

    def _joined(self, parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Join the states of all groups. Where no host of a group has had a seed of some kind, its rows are 0."""
        state: dict[str, Tensor] = {}
        for name, like in {name: tensor for part in parts for name, tensor in part.items()}.items():
            rows = [hosts.stop - hosts.start for hosts in self._hosts]
            own = [
                part.get(name, like.new_zeros(count, *like.shape[1:])) for part, count in zip(parts, rows, strict=True)
            ]
            state[name] = torch.cat(own) if like.ndim else like
        return state

    def seed_params(self, slots: Slots) -> Tensor:
        return self._own[0].population.seed_params(slots)

    def seed_flops(self, slots: Slots) -> Tensor:
        return self._own[0].population.seed_flops(slots)

    # --- how it is shared out ---

    def _held(self, data: Dataset) -> HeldByName:
        """Send data once; they are kept here too, so that no other object can take their place in memory."""
        if id(data) not in self._known:
            self._names += 1
            self._known[id(data)] = HeldByName({}, self._names), data
            self._all("remember", self._names, data)
        return self._known[id(data)][0]

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """Ask every group, each with its part of the arguments; answers come in the order of the hosts."""
        work = {index: [_part(each, hosts) for each in arguments] for index, hosts in enumerate(self._hosts)}
        return self._do({index: (method, own) for index, own in work.items()})

    def _do(self, work: dict[int, tuple[str, list]]) -> list[Any]:
        """Return what some groups answer; raise the SimicError of a group, ProcessLost when a process has gone."""
        orders = [{index: work[index] for index in owned if index in work} for owned in self._owners]
        with _process_losses():
            waiting = [
                worker.submit(_perform, _packed(order))
                for worker, order in zip(self._workers, orders[1:], strict=True)
                if order
            ]
            done = _answers(self._own, orders[0])
            for future in waiting:
                done |= pickle.loads(future.result())  # noqa: S301 - from our own process
        return [done[index] for index in work]


def _part(given: Any, hosts: slice) -> Any:
    """Return what an argument says of some hosts: rows of tensors, one by one or in a record; all of anything else."""
    if isinstance(given, Tensor | np.ndarray):
        return given[hosts] if given.ndim else given
    if isinstance(given, Slots):
        return replace(given, **_part(vars(given), hosts))
    if isinstance(given, SlotState):
        return given.of(hosts)
    return {name: _part(each, hosts) for name, each in given.items()} if isinstance(given, dict) else given


def _warn(lost: ProcessLost) -> None:
    _log.warning("%s; its episodes are played again", lost)


def recovered(population: Population | Shards, work: Callable[[], T], tell: Callable[[ProcessLost], None] = _warn) -> T:
    """Play episodes that begin with a reset; where a process was lost, play them again, at most RESTARTS times."""
    for _ in range(RESTARTS):
        try:
            return work()
        except ProcessLost as lost:
            if isinstance(population, Population):
                raise
            tell(lost)  # which may raise: whoever is to stop need not start again
            population.restart()
    return work()


@contextmanager
def _process_losses() -> Iterator[None]:
    """Raise ProcessLost where the executor says that its process has ended."""
    try:
        yield
    except BrokenProcessPool as error:
        raise ProcessLost(
            "a process that trains hosts has ended; if for want of memory, lower runtime.processes or train.envs"
        ) from error


class _Packer(pickle.Pickler):
    """Tensors as arrays: torch would put each into shared memory with a file descriptor of its own."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            return _unpacked, (obj.detach().contiguous().numpy(),)
        return NotImplemented


def _unpacked(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values)


def _packed(what: Any) -> bytes:
    stream = io.BytesIO()
    _Packer(stream, pickle.HIGHEST_PROTOCOL).dump(what)
    return stream.getvalue()


def _answers(groups: dict[int, Group], orders: dict[int, tuple[str, list]]) -> dict[int, Any]:
    return {index: groups[index].call(method, arguments) for index, (method, arguments) in orders.items()}


# --- in the other processes ---

_groups: dict[int, Group] = {}


def begin_process() -> None:
    """Leave Ctrl-C to the first process; end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _build(message: bytes) -> None:
    recipe, groups = pickle.loads(message)  # noqa: S301 - from our own process
    recipe.setup()
    _groups.update({index: recipe.build(ids) for index, ids in groups.items()})


def _perform(message: bytes) -> bytes:
    return _packed(_answers(_groups, pickle.loads(message)))  # noqa: S301 - from our own process
