"""Several processes train one policy: the hosts are split, gradients and statistics are summed over all of them.

    torchrun --standalone --nproc-per-node 2 -m simic.training.distributed --prepared data/prepared --work WORK

Random numbers, minibatches and what they sum to are keyed by the global environment, so the run is that of one process
up to rounding; its checkpoints are the same files, and any number of processes may go on from them. The first process
alone writes, and the others' rows reach it at the end of each rollout. On several nodes: torchrun's ``--nnodes`` and
``--rdzv-endpoint``; only the first process needs WORK, all need PREPARED.
"""

import argparse
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from simic.agent.normalization import Reduce
from simic.errors import SimicError
from simic.telemetry.recorder import Recorder
from simic.telemetry.rows import Row

if TYPE_CHECKING:
    from simic.params import Runtime

EXIT_INTERRUPTED = 3  # as of every other command
PATIENCE = timedelta(minutes=30)  # the slowest process may still be at its validation episodes
OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}

T = TypeVar("T")
AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; alone by default. All but ``rank`` is equal in all of them, and all
    must call the same methods in the same order.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @property
    def reduce(self) -> Reduce | None:
        """Sum or maximum of a tensor over all processes; None when alone."""
        return None if self.size == 1 else _reduce

    def env_ids(self, envs: int) -> Tensor:
        """The environments of this process: a contiguous part of 0 … envs−1."""
        if envs % self.size:
            raise SimicError(f"train.envs = {envs}: must be a multiple of the {self.size} processes")
        return self.part(torch.arange(envs))

    def part(self, whole: Tensor) -> Tensor:
        """What of a tensor ``[envs, …]`` is about this process's environments."""
        return whole.chunk(self.size)[self.rank]

    def whole(self, part: Tensor) -> Tensor:
        """The way back."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)

    def gather(self, value: T) -> list[T]:
        """Every process's, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """Whether it is true anywhere."""
        if self.size == 1:
            return flag
        found = torch.tensor(float(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def from_first(self, make: Callable[[], T]) -> T:
        """What the first process makes; its error is everyone's."""
        if self.size == 1:
            return make()
        outcome: list[Any] = [None, None]  # what was made, and the error
        if self.leads:
            try:
                outcome[0] = make()
            except SimicError as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0)
        made, error = outcome
        if error is not None:
            raise error
        return made


ALONE = Ranks()


def _reduce(tensor: Tensor, how: Literal["sum", "max"]) -> Tensor:
    # A maximum may lose a NaN on the way; infinity is found as well.
    tensor = tensor.clone() if how == "sum" else tensor.masked_fill(tensor.isnan(), torch.inf)
    dist.all_reduce(tensor, OPERATIONS[how])
    return tensor


@contextmanager
def joined(runtime: "Runtime", environ: Mapping[str, str] = os.environ) -> Iterator[Ranks]:
    """The processes that torchrun or ``training/team.py`` started (environment variables say so); alone without."""
    size = int(environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    cuda = runtime.device != "cpu" and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(environ["LOCAL_RANK"]))
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=environ.get("SIMIC_MEETING", "env://"),
        timeout=PATIENCE,
        rank=int(environ["RANK"]),
        world_size=size,
    )
    try:
        yield Ranks(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()


def merged(rows: Sequence[AnyRow]) -> AnyRow:
    """One row of all environments out of each process's row; what is no list is the same in all of them."""
    first = rows[0]
    if len(rows) == 1:
        return first
    return first.model_copy(update={name: _joined([getattr(row, name) for row in rows]) for name in vars(first)})


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    if isinstance(values[0], dict):
        return {key: _joined([value[key] for value in values]) for key in values[0]}
    return values[0]


class Silent(Recorder):
    """The log of a process that does not write."""

    def __init__(self) -> None:
        self.path = Path(os.devnull)

    def append(self, row: Row) -> None:
        """Nothing: the first process has it."""

    def flush_and_sync(self) -> int:
        return 0

    def truncate(self, offset: int) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""

    def _abandon(self) -> None:
        """Nothing is open."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with params.yaml in a work directory, alone or under torchrun."""
    from simic import params
    from simic.training import progress, trainer
    from simic.training.interrupts import Interrupted, stop_on_signals
    from simic.training.session import open_session

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("-S", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--prepared", type=Path, default=Path("data/prepared"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--fresh", action="store_true")
    given = parser.parse_args(arguments)
    tree, stop = params.load(given.params, given.overrides), threading.Event()
    try:
        with (
            joined(tree.runtime) as ranks,
            stop_on_signals(stop),
            open_session(tree, given.work, given.prepared, given.fresh, ranks) as session,
        ):
            trainer.train(session, progress.choose(tree.runtime.progress) if ranks.leads else (), stop)
    except (SimicError, Interrupted) as error:
        print(f"simic: {error}", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED if isinstance(error, Interrupted) else 1)


if __name__ == "__main__":
    main()
