"""Draw the bank of a suite: instances by hash, those of training and validation apart from those held out."""

import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from simic import params as params_module
from simic import registry
from simic.data.bank import SPLITS, Bank, standardise
from simic.data.batches import TaskGroup, TaskMeta
from simic.data.sources import COPIES, equal_rows
from simic.data.suites.kinds import KINDS, OUTSIDE, Draws, Problem, Sources
from simic.data.suites.suites import SUITES, TaskSuite
from simic.errors import SimicError
from simic.memory import refuse_too_much
from simic.params import Prepare

# From so many tasks of training on, this share of all tasks is drawn in another process.
LEAST_APART = 400
SHARE_APART = 0.42
# How often test samples are drawn until none is among the others.
MOST_DRAWS = 20
# The splits of tasks that training sees: their test split is never drawn.
VISIBLE = ("train", "val")

T = TypeVar("T")


@dataclass(frozen=True)
class Instance:
    task: TaskMeta
    arrays: dict[str, Tensor]


def suite_bank(params: Prepare, rng_seed: int, data_dir: Path) -> Bank:
    """Draw the bank of ``params.suite``.

    Args:
        params: section ``prepare``.
        rng_seed: seed of the run; every draw is a hash of it.
        data_dir: folder in which files of kinds lie.

    Raises:
        SimicError: naming a kind that is unknown or gives what cannot be used.
    """
    suite = SUITES[params.suite.name]
    kinds = _kinds(params)
    dealt = {
        group: suite.deal(kinds[group], getattr(params.suite.instances, group))
        for group in get_args(TaskGroup)
    }
    # Outside tasks have sources of their own: a row that training could draw is none from outside.
    sources = Sources(data_dir)
    outside_sources = Sources(data_dir)
    draw = partial(_draw, params, rng_seed)
    # Of many tasks a part is drawn in another process, which takes as long to start as some hundred of them.
    tasks = dealt["train"]
    apart = int(SHARE_APART * sum(map(len, dealt.values()))) if len(tasks) >= LEAST_APART else 0
    here = len(tasks) - apart
    work = partial(_draw_apart, params, rng_seed, data_dir, tasks[here:])
    with _one_thread(), _beside(work) if apart else nullcontext(work) as drawn_apart:
        first = draw("train", tasks[:here], sources)
        val = draw("val", dealt["val"], sources)
        held_out = draw("held_out", dealt["held_out"], sources)
        held_out += draw("held_out_kinds", dealt["held_out_kinds"], sources)
        outside = draw(OUTSIDE, dealt[OUTSIDE], outside_sources)
        rest, sources_apart = drawn_apart()
    sources.add(sources_apart)
    # As arrays, since torch takes a millisecond for each tensor that is pickled.
    visible = first + [Instance(task, _tensors(arrays)) for task, arrays in rest] + val
    _check_alike(visible + held_out)
    if shared := sorted(set(sources.sources) & set(outside_sources.sources)):
        raise SimicError(
            f"suite {suite.name!r}: outside kinds read {shared[0]}, and so do others: must be one of both"
        )
    # The bank names every source that it was drawn from.
    read = [
        shelf.sources[name]
        for shelf in (sources, outside_sources)
        for name in sorted(shelf.sources)
    ]
    return Bank(
        source=" + ".join([f"suite {suite.name}", *(source.name for source in read)]),
        source_sha256=params_module.digest({source.name: source.sha256 for source in read}),
        licence="; ".join(dict.fromkeys(source.licence for source in read)) or "generated",
        samples=_sizes(suite, params.samples),
        arrays=_joined(visible, VISIBLE),
        held_out_arrays=_joined(held_out, SPLITS) | _arrays_by_width(outside),
        tasks=[instance.task for instance in visible],
        held_out=[instance.task for instance in held_out + outside],
        dropped=sum((*sources.dropped.values(), *outside_sources.dropped.values())),
    )


def _draw(
    params: Prepare,
    rng_seed: int,
    group: TaskGroup,
    dealt: Sequence[tuple[str, int]],
    sources: Sources,
) -> list[Instance]:
    """Draw tasks of a group, of which ``dealt`` has the kind and the number of the instance."""
    suite = SUITES[params.suite.name]
    samples = _sizes(suite, params.samples)
    pool = "held_out" if group == "held_out_kinds" else group
    instances = list[Instance]()
    for kind, number in dealt:
        draws = Draws(rng_seed, kind, pool, number, sources)
        instances.append(_instance(draws, group, samples, suite))
        # The first task says how large all of them are.
        if len(instances) == 1:
            count = getattr(params.suite.instances, group)
            size = sum(array.nbytes for array in instances[0].arrays.values())
            refuse_too_much(
                f"{count} tasks", COPIES * count * size, f"prepare.suite.instances.{group}"
            )
    return instances


def _draw_apart(
    params: Prepare, rng_seed: int, data_dir: Path, dealt: Sequence[tuple[str, int]]
) -> tuple[list[tuple[TaskMeta, dict[str, NDArray[Any]]]], Sources]:
    """Draw tasks of training, as arrays, and tell which sources that took."""
    sources = Sources(data_dir)
    drawn = [
        (instance.task, {name: array.numpy() for name, array in instance.arrays.items()})
        for instance in _draw(params, rng_seed, "train", dealt, sources)
    ]
    return drawn, sources.without_samples()


def _tensors(arrays: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread: arrays are so small that a second one mostly waits, at twice the time of one alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Do picklable work in another process; give what waits for its result."""
    # Spawned, as a fork of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, _start_apart, (registry.extensions(),)) as worker:
        future = worker.submit(_pickled, work)
        try:
            yield lambda: pickle.loads(future.result())  # noqa: S301 - from our own process
        except BrokenProcessPool:
            raise SimicError(
                "prepare: the process that drew a part has ended; run it again"
            ) from None
        except KeyboardInterrupt:
            # Else the pool would wait for what it is at.
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _start_apart(extensions: Sequence[Path]) -> None:
    # Ctrl-C is for the first process, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    for file in extensions:
        registry.load_extension(file)


def _pickled(work: Callable[[], object]) -> bytes:
    # Here: torch would open a file for each tensor that it sends.
    return pickle.dumps(work())


def _arrays_by_width(outside: Sequence[Instance]) -> dict[str, Tensor]:
    """Join outside tasks of equal width; their arrays are named ``x_train/30``."""
    arrays = dict[str, Tensor]()
    for width in sorted({len(instance.task.mean) for instance in outside}):
        instances = [instance for instance in outside if len(instance.task.mean) == width]
        _check_alike(instances)
        arrays |= {f"{name}/{width}": array for name, array in _joined(instances, SPLITS).items()}
    return arrays


def _sizes(suite: TaskSuite, samples: int | None) -> dict[str, int]:
    """Count the samples of each split: the suite's own, or about so many in all in the same proportion."""
    if samples is None:
        return suite.samples
    total = sum(suite.samples.values())
    return {split: max(2, round(samples * size / total)) for split, size in suite.samples.items()}


def _kinds(params: Prepare) -> dict[TaskGroup, tuple[str, ...]]:
    """List the kinds that each group of tasks has."""
    name = params.suite.name
    suite = SUITES[name]
    registered = KINDS.get(name, {})
    held_out = (
        suite.held_out if params.suite.held_out_kinds is None else params.suite.held_out_kinds
    )
    val = tuple(kind for kind in suite.val if kind not in held_out)
    outside = tuple(kind for kind in suite.outside if kind not in held_out)
    # Why a kind is none of training.
    reserved = dict.fromkeys(val, "for validation alone") | dict.fromkeys(
        outside, "for evaluation alone"
    )
    reserved |= dict.fromkeys(
        held_out, "in held_out_kinds (null there: those that the suite holds out)"
    )
    kinds = params.suite.kinds or tuple(kind for kind in registered if kind not in reserved)
    # Names that make no sense are refused, whoever chose them.
    for kind in (*kinds, *held_out):
        if kind not in registered:
            raise SimicError(
                f"prepare.suite: suite {name!r} has no kind {kind!r}; it has {', '.join(registered)}"
            )
    for kind in kinds:
        if kind in reserved:
            raise SimicError(
                f"prepare.suite.kinds: in suite {name!r} {kind!r} is {reserved[kind]}: take another"
            )
    if not kinds:
        raise SimicError(
            f"prepare.suite: suite {name!r} has no kind that is not held out: one must be left"
        )
    return {
        "train": kinds,
        "val": val or kinds,
        "held_out": kinds,
        "held_out_kinds": held_out,
        "outside": outside,
    }


def _instance(
    draws: Draws, group: TaskGroup, samples: dict[str, int], suite: TaskSuite
) -> Instance:
    """Draw an instance: its parameters from one stream, the samples of each split from one of their own."""
    problem = KINDS[suite.name][draws.kind](draws)
    if not isinstance(problem, Problem):
        raise SimicError(f"kind {draws.kind!r}: gave {type(problem).__name__}, must be a Problem")
    # Tasks of training have no test split, so that none can be opened.
    drawn = {split: _samples(problem, draws.of_split(split), samples[split]) for split in VISIBLE}
    if group not in VISIBLE:
        earlier = [x for x, _ in drawn.values()]
        drawn["test"] = _unseen(problem, draws.of_split("test"), samples["test"], earlier)
    arrays, mean, std = standardise(drawn, tokens=False, table=suite.table)
    try:
        task = TaskMeta(
            name=f"{draws.kind}-{group}-{draws.instance}",
            kind=draws.kind,
            group=group,
            classes=problem.classes,
            parameters=problem.parameters,
            mean=mean,
            std=std,
        )
    except ValidationError as error:
        raise SimicError(
            f"kind {draws.kind!r}: only plain values can be recorded: {error}"
        ) from None
    return Instance(task, arrays)


def _unseen(
    problem: Problem, draws: Draws, count: int, earlier: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Draw samples of which none is among the ``earlier`` ones.

    Where all columns have few values a row may come twice by chance: it is drawn again; SimicError where that does not
    help.
    """
    x, y = _samples(problem, draws, count)
    repeated = _are_among(x, earlier)
    for _ in range(MOST_DRAWS):
        if not repeated.any():
            break
        # Only the rows that repeat an earlier one are replaced.
        fresh_x, fresh_y = _samples(problem, draws, count)
        x = torch.where(repeated[:, None, None, None], fresh_x, x)
        y = torch.where(repeated, fresh_y, y)
        repeated = _are_among(x, earlier)
    if repeated.any():
        raise SimicError(
            f"kind {draws.kind!r}: {int(repeated.sum())} of {count} test samples are training samples however often "
            "they are drawn: a task needs more different samples"
        )
    return x, y


def _are_among(x: Tensor, earlier: Sequence[Tensor]) -> Tensor:
    count = sum(map(len, earlier))
    return equal_rows(torch.cat((*earlier, x)).numpy())[count:] < count


def _samples(problem: Problem, draws: Draws, count: int) -> tuple[Tensor, Tensor]:
    """Draw samples of a split; SimicError unless they are what ``Problem`` promises."""
    x, y = problem.sample(draws, count)
    expected = (torch.float32, 4, count, torch.int64, (count,))
    if (x.dtype, x.ndim, len(x), y.dtype, y.shape) != expected:
        raise SimicError(
            f"kind {draws.kind!r}: x and y of {count} samples are {x.dtype} {list(x.shape)} and {y.dtype} "
            f"{list(y.shape)}: must be float32 [n, C, H, W] and int64 [n]"
        )
    if not x.isfinite().all():
        raise SimicError(f"kind {draws.kind!r}: x has values that are not finite")
    if problem.classes < 2 or y.min() < 0 or y.max() >= problem.classes:
        raise SimicError(
            f"kind {draws.kind!r}: {problem.classes} classes, labels from {int(y.min())} to {int(y.max())}: labels "
            "must be 0…classes-1 of at least 2 classes"
        )
    return x, y


def _check_alike(instances: Sequence[Instance]) -> None:
    """Raise SimicError unless all tasks have samples of one shape and type."""
    first = instances[0].arrays["x_train"][0]
    for instance in instances:
        x = instance.arrays["x_train"][0]
        if (x.shape, x.dtype) != (first.shape, first.dtype):
            raise SimicError(
                f"kind {instance.task.kind!r}: samples are {x.dtype} {list(x.shape)}, those of kind "
                f"{instances[0].task.kind!r} are {first.dtype} {list(first.shape)}: a suite has one shape"
            )


def _joined(instances: Sequence[Instance], splits: Sequence[str]) -> dict[str, Tensor]:
    """Concatenate the samples of one task after another."""
    names = [f"{axis}_{split}" for split in splits for axis in "xy"]
    return {name: torch.cat([instance.arrays[name] for instance in instances]) for name in names}
