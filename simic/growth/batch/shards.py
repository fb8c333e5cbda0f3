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
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from simic.data.batches import Dataset
from simic.errors import SimicError
from simic.growth.batch.forward import Backend
from simic.growth.batch.groups import Flags, SlotState
from simic.growth.batch.population import Answers, Population, flags_of
from simic.growth.batch.statistics import TrainStats
from simic.growth.life.vocabulary import Slots
from simic.growth.networks.blueprints import Blueprint, blueprints_of
from simic.growth.networks.hosts import HostSpec, build_host
from simic.params import Host, HostOptimizer

# Of lost processes, in one episode.
RESTARTS = 3

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
    params: int
    flops_per_sample: int
    rng_seed: int
    optimizer: HostOptimizer
    backend: Backend

    def build(self, env_ids: Tensor) -> "Group":
        """Build a group; nothing is counted or tried, for which torch would import its compiler (2 seconds)."""
        host = build_host(
            self.host,
            self.input_shape,
            self.classes,
            (self.params, self.flops_per_sample),
        )
        blueprints = self.blueprints or blueprints_of(self.host.family)
        population = Population(
            host,
            blueprints,
            env_ids,
            self.rng_seed,
            self.optimizer,
            backend=self.backend,
            checked=True,
        )
        return Group(population)


class Group:
    """Some hosts, and the data that they were sent, by number. Its methods are what a process is asked for."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.data: dict[int, Dataset] = {}

    def keep_data(self, number: int, data: Dataset) -> None:
        self.data[number] = data

    def reset(
        self,
        rng_seed: int,
        iteration: int,
        tasks: Tensor | None,
        env_ids: Tensor | None,
    ) -> None:
        self.population.rng_seed = rng_seed
        self.population.reset(iteration, tasks, env_ids)

    def germinate(self, slots: Slots, rows: Flags, data: int, state: SlotState) -> None:
        self.population.germinate(slots, rows, self.data[data], state)

    def aligned(self, data: int) -> Tensor:
        return self.population.aligned(self.data[data])

    def train_epoch(self, slots: Slots, data: int, order: Tensor, state: SlotState) -> TrainStats:
        return self.population.train_epoch(slots, self.data[data], order, state)

    def evaluate(self, slots: Slots, data: int, off: Flags, state: SlotState) -> Answers:
        """Evaluate configurations of the group's hosts.

        Args:
            slots: Their slots.
            data: Number of the data that were sent.
            off: Seeds that are switched off, bool ``[E, Cfg, K]``: hosts first, as in all that is cut into groups.
            state: What was read of ``slots``.
        """
        return self.population.evaluate(slots, self.data[data], off.swapaxes(0, 1), state)

    def take_snapshot(self) -> None:
        self.population.take_snapshot()

    def refresh_snapshot(self, hosts: Tensor, slots: Slots) -> None:
        self.population.refresh_snapshot(hosts, slots)

    def restore(self, hosts: Tensor) -> None:
        self.population.restore(hosts)

    def named_parameters(self, slots: Slots, row: int) -> dict[str, Tensor]:
        return self.population.named_parameters(slots, row)


@dataclass(frozen=True)
class Request:
    """A method of ``Group`` and its arguments."""

    method: Callable[..., Any]
    arguments: tuple[Any, ...]


class Shards:
    """A ``Population`` in several processes; this one works on the first groups itself.

    Args:
        host: As of a population, like the arguments that follow.
        layout: Groups and processes.
        setup: Is called in each other process before it builds its groups.
    """

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
        self.host = host
        self.blueprints = blueprints
        self.env_ids = env_ids
        self.rng_seed = rng_seed
        self.group = len(env_ids)
        self.layout = layout
        self._recipe = Recipe(
            setup=setup,
            blueprints=None if blueprints == blueprints_of(host.config.family) else blueprints,
            host=host.config,
            input_shape=host.input_shape,
            classes=host.classes,
            params=host.params,
            flops_per_sample=host.flops_per_sample,
            rng_seed=rng_seed,
            optimizer=optimizer,
            backend=backend,
        )
        # The hosts of each group, and the groups of each process.
        starts = range(0, len(env_ids), layout.group)
        self._hosts = [slice(start, min(start + layout.group, len(env_ids))) for start in starts]
        self._groups_by_process = [
            groups.tolist()
            for groups in np.array_split(np.arange(len(self._hosts)), layout.processes)
        ]
        self._workers: list[ProcessPoolExecutor] = []
        self._start()

    def __len__(self) -> int:
        return len(self.env_ids)

    def _start(self) -> None:
        """Start the processes; every host waits for its first reset."""
        # The data that every process has, by number; new processes have none.
        self._data: list[Dataset] = []
        ids_by_process = [
            {group: self.env_ids[self._hosts[group]] for group in groups}
            for groups in self._groups_by_process
        ]
        # Spawned, as a fork of a process with threads may hang. One executor each, so that hosts stay where they are.
        context = multiprocessing.get_context("spawn")
        self._workers = [ProcessPoolExecutor(1, context, begin_process) for _ in ids_by_process[1:]]
        futures = [
            worker.submit(_build, _packed((self._recipe, ids)))
            for worker, ids in zip(self._workers, ids_by_process[1:], strict=True)
        ]
        # While they start, this process builds its own groups.
        recipe = self._recipe
        self._local_groups = {
            group: Group(
                Population(
                    self.host,
                    self.blueprints,
                    ids,
                    recipe.rng_seed,
                    recipe.optimizer,
                    backend=recipe.backend,
                )
            )
            for group, ids in ids_by_process[0].items()
        }
        # No process may outlive a failure of another.
        try:
            with _process_losses():
                for future in futures:
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

    def reset(
        self,
        iteration: int,
        tasks: Tensor | None = None,
        env_ids: Tensor | None = None,
    ) -> None:
        self.env_ids = self.env_ids if env_ids is None else env_ids
        self._ask_all(Group.reset, self.rng_seed, iteration, tasks, env_ids)

    def germinate(
        self,
        slots: Slots,
        rows: Tensor | Flags,
        data: Dataset,
        state: SlotState | None = None,
    ) -> None:
        is_new = flags_of(rows)
        if is_new.any():
            self._ask_all(
                Group.germinate,
                slots,
                is_new,
                self._sent(data),
                state or SlotState.read(slots),
            )

    def aligned(self, data: Dataset) -> Tensor:
        return torch.cat(self._ask_all(Group.aligned, self._sent(data)))

    def train_epoch(
        self,
        slots: Slots,
        data: Dataset,
        order: Tensor,
        state: SlotState | None = None,
    ) -> TrainStats:
        state = state or SlotState.read(slots)
        return TrainStats.joined(
            self._ask_all(Group.train_epoch, slots, self._sent(data), order, state),
        )

    def evaluate(
        self,
        slots: Slots,
        data: Dataset,
        off: Tensor | Flags,
        state: SlotState | None = None,
    ) -> Answers:
        state = state or SlotState.read(slots)
        parts = self._ask_all(
            Group.evaluate,
            slots,
            self._sent(data),
            flags_of(off).swapaxes(0, 1),
            state,
        )
        return Answers(
            torch.cat([part.correct for part in parts], 1),
            torch.cat([part.loss for part in parts], 1),
        )

    def take_snapshot(self) -> None:
        self._ask_all(Group.take_snapshot)

    def refresh_snapshot(self, hosts: Tensor, slots: Slots) -> None:
        self._ask_all(Group.refresh_snapshot, hosts, slots)

    def restore(self, hosts: Tensor) -> None:
        self._ask_all(Group.restore, hosts)

    def named_parameters(self, slots: Slots, row: int) -> dict[str, Tensor]:
        # The group that has the host answers, for its row there.
        group = row // self.layout.group
        hosts = self._hosts[group]
        request = Request(Group.named_parameters, (_rows_of(slots, hosts), row - hosts.start))
        return self._ask({group: request})[group]

    def seed_params(self, slots: Slots) -> Tensor:
        return self._local_groups[0].population.seed_params(slots)

    def seed_flops(self, slots: Slots) -> Tensor:
        return self._local_groups[0].population.seed_flops(slots)

    # --- how it is shared out ---

    def _sent(self, data: Dataset) -> int:
        """Send data once, and tell their number. They are kept here too, so that they stay in memory."""
        # By identity: comparing the values would read all of them.
        for number, sent in enumerate(self._data):
            if sent is data:
                return number
        self._data.append(data)
        number = len(self._data) - 1
        self._ask_all(Group.keep_data, number, data)
        return number

    def _ask_all(self, method: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Ask every group, each with the rows of the arguments that are of its hosts; answers are in their order."""
        requests = {
            group: Request(method, tuple(_rows_of(argument, hosts) for argument in arguments))
            for group, hosts in enumerate(self._hosts)
        }
        answers = self._ask(requests)
        return [answers[group] for group in requests]

    def _ask(self, requests: dict[int, Request]) -> dict[int, Any]:
        """Ask some groups; raise the SimicError of a group, ProcessLost when a process has gone."""
        by_process = [
            {group: requests[group] for group in groups if group in requests}
            for groups in self._groups_by_process
        ]
        # The others work while this process does its share.
        with _process_losses():
            futures = [
                worker.submit(_perform, _packed(part))
                for worker, part in zip(self._workers, by_process[1:], strict=True)
                if part
            ]
            answers = _answers(self._local_groups, by_process[0])
            for future in futures:
                answers |= pickle.loads(future.result())  # noqa: S301 - from our own process
        return answers


def _rows_of(argument: Any, hosts: slice) -> Any:
    """Cut an argument to some hosts: tensors and arrays with a row for each, records of such; nothing else is cut."""
    # Numbers, names and data numbers are for all groups alike.
    if isinstance(argument, Tensor | np.ndarray):
        return argument[hosts]
    if isinstance(argument, Slots):
        return Slots(**{name: column[hosts] for name, column in vars(argument).items()})
    return argument.of(hosts) if isinstance(argument, SlotState) else argument


def _warn(lost: ProcessLost) -> None:
    _log.warning("%s; its episodes are played again", lost)


def recovered(
    population: Population | Shards,
    work: Callable[[], T],
    tell: Callable[[ProcessLost], None] = _warn,
) -> T:
    """Play episodes that begin with a reset; where a process was lost, play them again, at most RESTARTS times.

    Args:
        population: Its processes are started again.
        work: Plays the episodes.
        tell: Is called with each loss, and may raise.
    """
    # Episodes are functions of their numbers, so a second time they are the same.
    for _ in range(RESTARTS):
        try:
            return work()
        except ProcessLost as lost:
            # Nothing of this process was lost: the loss is somebody else's.
            if isinstance(population, Population):
                raise
            tell(lost)
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
            return torch.from_numpy, (obj.detach().contiguous().numpy(),)
        return NotImplemented


def _packed(message: Any) -> bytes:
    stream = io.BytesIO()
    _Packer(stream, pickle.HIGHEST_PROTOCOL).dump(message)
    return stream.getvalue()


def _answers(groups: dict[int, Group], requests: dict[int, Request]) -> dict[int, Any]:
    return {
        group: request.method(groups[group], *request.arguments)
        for group, request in requests.items()
    }


# --- in the other processes ---

_groups: dict[int, Group] = {}


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


def _build(message: bytes) -> None:
    recipe, ids_by_group = pickle.loads(message)  # noqa: S301 - from our own process
    recipe.setup()
    _groups.update({group: recipe.build(ids) for group, ids in ids_by_group.items()})


def _perform(message: bytes) -> bytes:
    return _packed(_answers(_groups, pickle.loads(message)))  # noqa: S301 - from our own process
