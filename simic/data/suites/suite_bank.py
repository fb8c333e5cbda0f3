"""Draw the bank of a suite: instances by hash, those of training and validation apart from those held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from simic import params as params_module
from simic.data.bank import SPLITS, Bank, standardised
from simic.data.batches import TaskGroup, TaskMeta
from simic.data.sources import COPIES, equal_rows
from simic.data.suites.kinds import KINDS, OUTSIDE, Draws, Problem, Sources
from simic.data.suites.suites import SUITES, TaskSuite
from simic.errors import SimicError
from simic.memory import refuse_too_much
from simic.params import Prepare

MOST_DRAWS = 20  # of test samples, until none is among the others
VISIBLE = ("train", "val")  # the splits of tasks that training sees: their test split is never drawn


@dataclass(frozen=True)
class Instance:
    task: TaskMeta
    arrays: dict[str, Tensor]


def many(params: Prepare, rng_seed: int, data_dir: Path) -> Bank:
    """Return the bank of ``params.suite``."""
    shipped, counts, kinds = SUITES[params.suite.name], params.suite.instances, _kinds(params)
    samples = shipped.samples
    if params.samples is not None:  # about as many in all, in the suite's own proportion
        whole = sum(samples.values())
        samples = {split: max(2, round(params.samples * n / whole)) for split, n in samples.items()}
    shelf, apart = Sources(data_dir), Sources(data_dir)

    def drawn(group: TaskGroup, count: int) -> list[Instance]:
        pool = "held_out" if group == "held_out_kinds" else group
        sources, instances = apart if group == OUTSIDE else shelf, list[Instance]()
        for name, k in shipped.dealt(kinds[group], count):
            instances.append(_instance(Draws(rng_seed, name, pool, k, sources), group, samples, shipped))
            if len(instances) == 1:
                each = sum(array.nbytes for array in instances[0].arrays.values())
                refuse_too_much(f"{count} tasks", COPIES * count * each, f"prepare.suite.instances.{group}")
        return instances

    visible = drawn("train", counts.train) + drawn("val", counts.val)
    hidden = drawn("held_out", counts.held_out) + drawn("held_out_kinds", counts.held_out_kinds)
    _check_alike(visible + hidden)
    outside = drawn(OUTSIDE, counts.outside)
    if shared := sorted(set(shelf.sources) & set(apart.sources)):
        raise SimicError(
            f"suite {shipped.name!r}: outside kinds read {shared[0]}, and so do others: must be one of both"
        )
    hidden_arrays = _joined(hidden, SPLITS)
    for width in sorted({len(each.task.mean) for each in outside}):
        instances = [each for each in outside if len(each.task.mean) == width]
        _check_alike(instances)
        hidden_arrays |= {f"{name}/{width}": array for name, array in _joined(instances, SPLITS).items()}
    sources = [held.sources[name] for held in (shelf, apart) for name in sorted(held.sources)]
    return Bank(
        source=" + ".join([f"suite {shipped.name}", *(source.name for source in sources)]),
        source_sha256=params_module.digest({source.name: source.sha256 for source in sources}),
        licence="; ".join(dict.fromkeys(source.licence for source in sources)) or "generated",
        samples=samples,
        arrays=_joined(visible, VISIBLE),
        held_out_arrays=hidden_arrays,
        tasks=[instance.task for instance in visible],
        held_out=[instance.task for instance in hidden + outside],
        dropped=shelf.dropped + apart.dropped,
    )


def _kinds(params: Prepare) -> dict[TaskGroup, tuple[str, ...]]:
    """Return the names of the kinds that each group of tasks has."""
    asked, known, shipped = params.suite, KINDS.get(params.suite.name, {}), SUITES[params.suite.name]
    held = shipped.held_out if asked.held_out_kinds is None else asked.held_out_kinds
    val = tuple(name for name in shipped.val if name not in held)
    outside = tuple(name for name in shipped.outside if name not in held)
    kept = dict.fromkeys(val, "for validation alone") | dict.fromkeys(outside, "for evaluation alone")
    kept |= dict.fromkeys(held, "in held_out_kinds (null there: those that the suite holds out)")
    kinds = asked.kinds or tuple(name for name in known if name not in kept)
    for name in (*kinds, *held):
        if name not in known:
            raise SimicError(f"prepare.suite: suite {asked.name!r} has no kind {name!r}; it has {', '.join(known)}")
    if both := [name for name in kinds if name in kept]:
        raise SimicError(f"prepare.suite.kinds: in suite {asked.name!r} {both[0]!r} is {kept[both[0]]}: take another")
    if not kinds:
        raise SimicError(f"prepare.suite: suite {asked.name!r} has no kind that is not held out: one must be left")
    return {"train": kinds, "val": val or kinds, "held_out": kinds, "held_out_kinds": held, "outside": outside}


def _instance(draws: Draws, group: TaskGroup, samples: dict[str, int], shipped: TaskSuite) -> Instance:
    """Draw an instance: its parameters from one stream, the samples of each split from one of their own."""
    problem = KINDS[shipped.name][draws.kind](draws)
    if not isinstance(problem, Problem):
        raise SimicError(f"kind {draws.kind!r}: gave {type(problem).__name__}, must be a Problem")
    drawn = {split: _samples(problem, draws.of_split(split), samples[split]) for split in VISIBLE}
    if group not in VISIBLE:
        drawn["test"] = _unseen(problem, draws.of_split("test"), samples["test"], [x for x, _ in drawn.values()])
    arrays, mean, std = standardised(drawn, False, shipped.table)
    name, parameters = f"{draws.kind}-{group}-{draws.instance}", problem.parameters
    try:
        task = TaskMeta(
            name=name, kind=draws.kind, group=group, classes=problem.classes, parameters=parameters, mean=mean, std=std
        )
    except ValidationError as error:
        raise SimicError(f"kind {draws.kind!r}: only plain values can be recorded: {error}") from None
    return Instance(task, arrays)


def _unseen(problem: Problem, draws: Draws, n: int, seen: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return ``n`` samples of which none is among those ``seen``. Where all columns have few values a row may come
    twice by chance: it is drawn again; SimicError where that does not help.
    """
    x, y = _samples(problem, draws, n)
    twice = _are_among(x, seen)
    for _ in range(MOST_DRAWS):
        if not twice.any():
            break
        other, labels = _samples(problem, draws, n)
        x, y = torch.where(twice[:, None, None, None], other, x), torch.where(twice, labels, y)
        twice = _are_among(x, seen)
    if twice.any():
        raise SimicError(
            f"kind {draws.kind!r}: {int(twice.sum())} of {n} test samples are training samples however often they are "
            "drawn: a task needs more different samples"
        )
    return x, y


def _are_among(x: Tensor, seen: Sequence[Tensor]) -> Tensor:
    known = sum(map(len, seen))
    return equal_rows(torch.cat((*seen, x)).numpy())[known:] < known


def _samples(problem: Problem, draws: Draws, n: int) -> tuple[Tensor, Tensor]:
    """Return ``n`` samples of a split; SimicError unless they are what ``Problem`` promises."""
    x, y = problem.sample(draws, n)
    if (x.dtype, x.ndim, len(x), y.dtype, y.shape) != (torch.float32, 4, n, torch.int64, (n,)):
        raise SimicError(
            f"kind {draws.kind!r}: x and y of {n} samples are {x.dtype} {list(x.shape)} and {y.dtype} "
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
    first, *others = ((each.task.kind, each.arrays["x_train"][0]) for each in instances)
    for kind, x in others:
        if (x.shape, x.dtype) != (first[1].shape, first[1].dtype):
            raise SimicError(
                f"kind {kind!r}: samples are {x.dtype} {list(x.shape)}, those of kind {first[0]!r} are "
                f"{first[1].dtype} {list(first[1].shape)}: a suite has one shape"
            )


def _joined(instances: Sequence[Instance], splits: Sequence[str]) -> dict[str, Tensor]:
    """Concatenate the samples of one task after another."""
    names = [f"{axis}_{split}" for split in splits for axis in "xy"]
    return {name: torch.cat([instance.arrays[name] for instance in instances]) for name in names}
