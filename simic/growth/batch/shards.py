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
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from simic.data.batches import Dataset
from simic.errors import SimicError
from simic.growth.batch.groups import Flags, SlotState
from simic.growth.batch.population import Answers, Augment, Population, Snapshot, flags_of
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
    """What every process builds its groups from."""

    setup: Callable[[], object]
    host: Host
    input_shape: tuple[int, ...]
    classes: int
    weights: Mapping[str, Tensor] | None
    frozen: bool
    counts: tuple[int, int]
    rng_seed: int
    optimizer: HostOptimizer
    backend: str

    def build(self, env_ids: Tensor) -> "Group":
        """Nothing is counted or tried here: for that torch imports its compiler, which takes 2 seconds."""
        host = build_host(self.host, self.input_shape, self.classes, self.weights, self.counts)
        host, kinds = replace(host, frozen=self.frozen), blueprints_of(self.host.family)
        return Group(Population(host, kinds, env_ids, self.rng_seed, self.optimizer, "cpu", self.backend, checked=True))


@dataclass(frozen=True)
class Remembered(Snapshot):
    """A snapshot that stays where the hosts are, under this name."""

    name: int


class Group:
    """Some hosts, with the data and snapshots they are asked to remember by name."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.data: dict[int, Dataset] = {}
        self.snapshots: dict[int, Snapshot] = {}

    def remember(self, name: int, data: Dataset) -> None:
        self.data[name] = data

    def reset(self, rng_seed: int, iteration: int, tasks: Tensor | None, env_ids: Tensor | None) -> None:
        self.population.rng_seed = rng_seed
        self.population.reset(iteration, tasks, env_ids)

    def germinate(self, slots: Slots, rows: Flags, data: int | None, state: SlotState) -> None:
        self.population.germinate(slots, rows, None if data is None else self.data[data], state)

    def train_epoch(
        self, slots: Slots, data: int, order: Tensor, augment: Augment | None, state: SlotState
    ) -> TrainStats:
        return self.population.train_epoch(slots, self.data[data], order, augment, state)

    def evaluate(self, slots: Slots, data: int, off: Flags, state: SlotState) -> Answers:
        return self.population.evaluate(slots, self.data[data], off, state)

    def snapshot(self, name: int) -> None:
        self.snapshots = {name: self.population.snapshot()}

    def refresh(self, name: int, rows: Tensor, slots: Slots) -> None:
        self.population.refresh(self.snapshots[name], rows, slots)

    def restore(self, name: int, rows: Tensor) -> None:
        self.population.restore(self.snapshots[name], rows)

    def named_parameters(self, slots: Slots, row: int) -> dict[str, Tensor]:
        return self.population.named_parameters(slots, row)

    def state_dict(self) -> dict[str, Tensor]:
        return self.population.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.population.load_state_dict(state)

    def snapshot_state(self, name: int) -> dict[str, Tensor]:
        return self.population.snapshot_state(self.snapshots[name])

    def load_snapshot(self, name: int, state: dict[str, Tensor]) -> None:
        self.snapshots = {name: self.population.load_snapshot(state)}


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
        backend: str = "auto",
        *,
        layout: Layout,
        setup: Callable[[], object],
    ) -> None:
        self.host, self.blueprints, self.env_ids, self.rng_seed = host, blueprints, env_ids, rng_seed
        self.host_params, self.host_flops, self.group = host.params, host.flops_per_sample, len(env_ids)
        self.layout = layout
        if host.config is None:
            raise SimicError(
                f"host {host.preset}: a network of the user's own stays in one process: runtime.processes=1"
            )
        counts = host.params, host.flops_per_sample
        what = host.config, host.input_shape, host.classes, host.weights, host.frozen, counts
        self._recipe = Recipe(setup, *what, rng_seed, optimizer, backend)
        starts = range(0, len(env_ids), layout.group)
        self._hosts = [slice(start, min(start + layout.group, len(env_ids))) for start in starts]
        owners = np.array_split(np.arange(len(self._hosts)), layout.processes)
        self._owners = [part.tolist() for part in owners]
        self._workers: list[ProcessPoolExecutor] = []
        self._start()

    def __len__(self) -> int:
        return len(self.env_ids)

    def _start(self) -> None:
        """Everything as it is before the first reset."""
        self._names, self._known = 0, dict[int, tuple[int, Dataset]]()
        context = multiprocessing.get_context("spawn")
        self._workers = [ProcessPoolExecutor(1, context, _begin) for _ in self._owners[1:]]
        groups = [{index: self.env_ids[self._hosts[index]] for index in owned} for owned in self._owners]
        waiting = [
            worker.submit(_build, _packed((self._recipe, own)))
            for worker, own in zip(self._workers, groups[1:], strict=True)
        ]
        self._own = {index: self._first(ids) for index, ids in groups[0].items()}
        try:
            for future in waiting:
                _result(future)
        except BaseException:
            self.close()
            raise

    def _first(self, env_ids: Tensor) -> Group:
        recipe = self._recipe
        return Group(
            Population(self.host, self.blueprints, env_ids, recipe.rng_seed, recipe.optimizer, "cpu", recipe.backend)
        )

    def restart(self) -> None:
        """New processes for lost ones; every host has to be reset."""
        self.close()
        self._start()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)
        self._workers = []

    # --- what a population can do ---

    def reset(self, iteration: int, tasks: Tensor | None = None, env_ids: Tensor | None = None) -> None:
        """As ``Population.reset``."""
        self.env_ids = self.env_ids if env_ids is None else env_ids
        given = tasks, env_ids
        self._all(
            "reset",
            lambda hosts: (self.rng_seed, iteration, *(None if each is None else each[hosts] for each in given)),
        )

    def germinate(
        self, slots: Slots, rows: Tensor | Flags, data: Dataset | None = None, state: SlotState | None = None
    ) -> None:
        """As ``Population.germinate``."""
        state, chosen = state or SlotState.read(slots), flags_of(rows)
        name = None if data is None else self._name_of(data)
        if chosen.any():
            self._all("germinate", lambda hosts: (_part(slots, hosts), chosen[hosts], name, state.of(hosts)))

    def train_epoch(
        self,
        slots: Slots,
        data: Dataset,
        order: Tensor,
        augment: Augment | None = None,
        state: SlotState | None = None,
    ) -> TrainStats:
        """As ``Population.train_epoch``."""
        state, name = state or SlotState.read(slots), self._name_of(data)
        found = self._all(
            "train_epoch",
            lambda hosts: (
                _part(slots, hosts),
                name,
                order[hosts],
                None if augment is None else augment.of(hosts),
                state.of(hosts),
            ),
        )
        return TrainStats(**{name: torch.cat([getattr(part, name) for part in found]) for name in vars(found[0])})

    def evaluate(self, slots: Slots, data: Dataset, off: Tensor | Flags, state: SlotState | None = None) -> Answers:
        """As ``Population.evaluate``."""
        state, flags, name = state or SlotState.read(slots), flags_of(off), self._name_of(data)
        found = self._all("evaluate", lambda hosts: (_part(slots, hosts), name, flags[:, hosts], state.of(hosts)))
        return Answers(torch.cat([part.correct for part in found], 1), torch.cat([part.loss for part in found], 1))

    def snapshot(self) -> Snapshot:
        """As ``Population.snapshot``; the one before is forgotten."""
        self._names += 1
        self._all("snapshot", lambda hosts: (self._names,))
        return Remembered({}, self._names)

    def refresh(self, snapshot: Snapshot, rows: Tensor, slots: Slots) -> None:
        """As ``Population.refresh``."""
        self._all("refresh", lambda hosts: (_name(snapshot), rows[hosts], _part(slots, hosts)))

    def restore(self, snapshot: Snapshot, rows: Tensor) -> None:
        """As ``Population.restore``."""
        self._all("restore", lambda hosts: (_name(snapshot), rows[hosts]))

    def named_parameters(self, slots: Slots, row: int) -> dict[str, Tensor]:
        """As ``Population.named_parameters``."""
        index = row // self.layout.group
        hosts = self._hosts[index]
        [found] = self._do({index: ("named_parameters", (_part(slots, hosts), row - hosts.start))})
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """As ``Population.state_dict``, of all hosts: however they are shared out, it is the same."""
        return self._joined(self._all("state_dict", lambda hosts: ())) | {"group": torch.tensor(self.group)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """As ``Population.load_state_dict``."""

        def own(hosts: slice) -> dict[str, Tensor]:
            return _of_hosts(state, hosts) | {"group": torch.tensor(hosts.stop - hosts.start)}

        self._all("load_state_dict", lambda hosts: (own(hosts),))

    def snapshot_state(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """As ``Population.snapshot_state``."""
        return self._joined(self._all("snapshot_state", lambda hosts: (_name(snapshot),)))

    def load_snapshot(self, state: dict[str, Tensor]) -> Snapshot:
        """As ``Population.load_snapshot``."""
        self._names += 1
        self._all("load_snapshot", lambda hosts: (self._names, _of_hosts(state, hosts)))
        return Remembered({}, self._names)

    def _joined(self, parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """One state of every group's. Where no host of a group has had a seed of some kind, its rows are 0."""
        found: dict[str, Tensor] = {}
        for name, like in {name: tensor for part in parts for name, tensor in part.items()}.items():
            rows = [hosts.stop - hosts.start for hosts in self._hosts]
            own = [
                part.get(name, like.new_zeros(count, *like.shape[1:])) for part, count in zip(parts, rows, strict=True)
            ]
            found[name] = torch.cat(own) if like.ndim else like
        return found

    def seed_params(self, slots: Slots) -> Tensor:
        """As ``Population.seed_params``."""
        return self._own[0].population.seed_params(slots)

    def seed_flops(self, slots: Slots) -> Tensor:
        """As ``Population.seed_flops``."""
        return self._own[0].population.seed_flops(slots)

    # --- how it is shared out ---

    def _name_of(self, data: Dataset) -> int:
        """Data are sent once; held here, so that no other object can take their place in memory."""
        if id(data) not in self._known:
            self._known[id(data)] = len(self._known), data
            self._all("remember", lambda hosts: self._known[id(data)])
        return self._known[id(data)][0]

    def _all(self, method: str, arguments: Callable[[slice], tuple]) -> list[Any]:
        """Of every group, in the order of the hosts."""
        return self._do({index: (method, arguments(hosts)) for index, hosts in enumerate(self._hosts)})

    def _do(self, work: dict[int, tuple[str, tuple]]) -> list[Any]:
        """What some groups answer; SimicError that of a group, ProcessLost when a process has gone."""
        orders = [{index: work[index] for index in owned if index in work} for owned in self._owners]
        try:
            waiting = [
                worker.submit(_perform, _packed(order))
                for worker, order in zip(self._workers, orders[1:], strict=True)
                if order
            ]
        except BrokenProcessPool as error:
            raise ProcessLost("a process that trains hosts has ended") from error
        done = _answers(self._own, orders[0])
        for future in waiting:
            done |= pickle.loads(_result(future))  # noqa: S301 - from our own process
        return [done[index] for index in work]


def _warn(lost: ProcessLost) -> None:
    _log.warning("%s; its episodes are played again", lost)


def recovered(population: Population | Shards, work: Callable[[], T], tell: Callable[[ProcessLost], None] = _warn) -> T:
    """Episodes that begin with a reset: again from there where a process was lost, at most RESTARTS times."""
    for left in reversed(range(RESTARTS + 1)):
        try:
            return work()
        except ProcessLost as lost:
            if not left or isinstance(population, Population):
                raise
            tell(lost)  # which may raise: whoever is to stop need not start again
            population.restart()
    raise AssertionError("not reached")


def _name(snapshot: Snapshot) -> int:
    assert isinstance(snapshot, Remembered)
    return snapshot.name


def _of_hosts(state: Mapping[str, Tensor], hosts: slice) -> dict[str, Tensor]:
    return {name: tensor[hosts] if tensor.ndim else tensor for name, tensor in state.items()}


def _part(slots: Slots, hosts: slice) -> Slots:
    return replace(slots, **{name: column[hosts] for name, column in vars(slots).items()})


def _result(future: "Future[T]") -> T:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise ProcessLost("a process that trains hosts has ended") from error


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


def _answers(groups: dict[int, Group], orders: dict[int, tuple[str, tuple]]) -> dict[int, Any]:
    return {index: getattr(groups[index], method)(*arguments) for index, (method, arguments) in orders.items()}


# --- in the other processes ---


class _Held:
    """What such a process keeps from call to call."""

    groups: dict[int, Group]


_here = _Held()


def _begin() -> None:
    """Ctrl-C is for the first process alone; a process whose parent is gone ends."""
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
    _here.groups = {index: recipe.build(ids) for index, ids in groups.items()}


def _perform(message: bytes) -> bytes:
    return _packed(_answers(_here.groups, pickle.loads(message)))  # noqa: S301 - from our own process
