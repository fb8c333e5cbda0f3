"""Share a training run among the processes of torchrun: each holds a part of the environments."""

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from simic.errors import SimicError
from simic.params import Runtime
from simic.telemetry.columns import Columns
from simic.transfer import Reduce, alone

PATIENCE = timedelta(minutes=30)  # the slowest process may still be at its validation episodes
OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; alone by default. All but ``rank`` is equal in all of them, and all
    must call the same methods in the same order.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Tell whether this is the process that writes."""
        return self.rank == 0

    @property
    def reduce(self) -> Reduce:
        """What sums or maximises a tensor over all processes."""
        return alone if self.size == 1 else _reduce

    def env_ids(self, envs: int) -> Tensor:
        """Choose the environments of this process: a contiguous part of 0 … envs−1."""
        # Collective calls want equal shapes from all, and the loss sums equal parts.
        if envs % self.size:
            raise SimicError(
                f"train.envs = {envs}: must be a multiple of the {self.size} processes"
            )
        return self.part(torch.arange(envs))

    def part(self, tensor: Tensor) -> Tensor:
        """Cut out of a tensor ``[envs, …]`` what is about this process's environments."""
        return tensor.chunk(self.size)[self.rank]

    def whole(self, part: Tensor) -> Tensor:
        """Join the tensor of all environments from the parts of all processes."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)

    def gather(self, value: T) -> list[T]:
        """Collect a value from every process, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """Tell whether a flag is true in any process."""
        if self.size == 1:
            return flag
        # NCCL exchanges tensors of a GPU alone.
        raised = torch.tensor(float(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return bool(raised)

    def from_first(self, make: Callable[[], T]) -> T:
        """Make something in the first process and hand it to all; its error is raised in all."""
        if self.size == 1:
            return make()
        # The error travels in place of the value, so that no process waits for one that failed.
        outcome: list[Any] = [None, None]  # the value, and the error
        if self.leads:
            try:
                outcome[0] = make()
            except SimicError as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0)
        value, error = outcome
        if error is not None:
            raise error
        return value


ALONE = Ranks()


def _reduce(tensor: Tensor, how: Literal["sum", "max"]) -> Tensor:
    # A maximum may lose a NaN on the way; infinity is found as well.
    tensor = tensor.clone() if how == "sum" else tensor.masked_fill(tensor.isnan(), torch.inf)
    dist.all_reduce(tensor, OPERATIONS[how])
    return tensor


@contextmanager
def joined(runtime: Runtime) -> Iterator[Ranks]:
    """Join the processes that torchrun started, as environment variables say; alone without."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    # Each process of a machine has a GPU of its own.
    cuda = runtime.device != "cpu" and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=_store(rank, size),
        timeout=PATIENCE,
        rank=rank,
        world_size=size,
    )
    # However it ends: a group that stays would make the next one in this process fail.
    try:
        yield Ranks(rank, size)
    finally:
        dist.destroy_process_group()


def _store(rank: int, size: int) -> Store:
    """Open the store by which the processes find each other.

    That of torchrun outlives them: after a restart it still holds the addresses of the dead, and whoever reads one
    waits for ever (pytorch/pytorch#135712). So the first process gives those that live now a name for keys of their
    own; each asks for it with a word that nobody had before.
    """
    store, *_ = next(rendezvous("env://", rank, size, timeout=PATIENCE))
    word = secrets.token_hex(8)
    give_up = time.monotonic() + PATIENCE.total_seconds()
    # The others ask with a fresh word, wait for the answer under it, and confirm.
    if rank:
        store.set(f"ask/{rank}", word)
        name = store.get(f"answer/{word}").decode()
        store.add(name, 1)
        return PrefixStore(name, store)
    # The first answers whoever asks, again and again: a dead process may have asked before.
    while (come := 1 + store.add(word, 0)) < size:
        if time.monotonic() > give_up:
            raise SimicError(f"only {come} of {size} processes have come within {PATIENCE}")
        for peer in range(1, size):
            if store.check([f"ask/{peer}"]):
                store.set(f"answer/{store.get(f'ask/{peer}').decode()}", word)
        time.sleep(0.01)
    return PrefixStore(word, store)


def merged(parts: list[Columns], axis: int) -> Columns:
    """Join the columns of all processes; ``axis`` is that of the environments."""
    return {name: np.concatenate([part[name] for part in parts], axis) for name in parts[0]}
