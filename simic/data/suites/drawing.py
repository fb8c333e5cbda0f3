"""From a suite to a bank: instances drawn by hash, those of training and validation apart from those held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from simic import params as params_module
from simic.data.bank import SPLITS, Bank, standardised
from simic.data.batches import TaskGroup, TaskMeta
from simic.data.suites import patches  # noqa: F401 - registers the shipped suites
from simic.data.suites.kinds import KINDS, Draws, Kind
from simic.data.suites.suites import SUITES
from simic.errors import SimicError
from simic.params import Prepare


@dataclass(frozen=True)
class Instance:
    """One task with the arrays of its splits."""

    task: TaskMeta
    arrays: dict[str, Tensor]


def many(params: Prepare, rng_seed: int, data_dir: Path) -> Bank:
    """The bank of ``params.suite``; SimicError for kinds that the suite does not have."""
    shipped, counts = SUITES[params.suite.name], params.suite.instances
    kinds, held = _kinds(params)
    samples = shipped.samples if params.samples is None else _in_proportion(shipped.samples, params.samples)

    def drawn(group: TaskGroup, of: dict[str, Kind], count: int) -> list[Instance]:
        names = list(of)
        places = [(names[k % len(names)], k // len(names)) for k in range(count if names else 0)]
        return [_instance(name, of[name], group, number, samples, rng_seed, data_dir) for name, number in places]

    visible = drawn("train", kinds, counts.train) + drawn("val", kinds, counts.val)
    hidden = drawn("held_out", kinds, counts.held_out) + drawn("held_out_kinds", held, counts.held_out_kinds)
    sources = shipped.sources(data_dir)
    return Bank(
        source=f"suite {shipped.name}",
        source_sha256=params_module.digest({source.name: source.sha256 for source in sources}),
        licence="; ".join(dict.fromkeys(source.licence for source in sources)) or "generated",
        samples=samples,
        arrays=_joined(visible, ("train", "val")),
        held_out_arrays=_joined(hidden, SPLITS),
        tasks=[instance.task for instance in visible],
        held_out=[instance.task for instance in hidden],
    )


def _kinds(params: Prepare) -> tuple[dict[str, Kind], dict[str, Kind]]:
    """Those that training may see, and those held out entirely."""
    asked, known = params.suite, KINDS[params.suite.name]
    held = SUITES[asked.name].held_out if asked.held_out_kinds is None else asked.held_out_kinds
    kinds = asked.kinds or tuple(name for name in known if name not in held)
    for name in (*kinds, *held):
        if name not in known:
            raise SimicError(f"prepare.suite: suite {asked.name!r} has no kind {name!r}; it has {', '.join(known)}")
    if both := sorted(set(kinds) & set(held)):
        raise SimicError(f"prepare.suite: kind {both[0]!r} is both in kinds and in held_out_kinds: must be in one")
    return {name: known[name] for name in kinds}, {name: known[name] for name in held}


def _instance(
    name: str, kind: Kind, group: TaskGroup, number: int, samples: dict[str, int], rng_seed: int, data_dir: Path
) -> Instance:
    """Its parameters come from one stream, the samples of each split from one of their own."""
    pool = "held_out" if group == "held_out_kinds" else group
    problem = kind(Draws(rng_seed, name, pool, number, None, data_dir))
    found = {
        split: problem.sample(Draws(rng_seed, name, pool, number, split, data_dir), n) for split, n in samples.items()
    }
    tokens = found["train"][0].dtype == torch.uint8
    arrays, mean, std = standardised(found, tokens)
    task = TaskMeta(
        name=f"{name}-{group}-{number}",
        kind=name,
        group=group,
        classes=problem.classes,
        parameters=problem.parameters,
        mean=mean,
        std=std,
    )
    return Instance(task, arrays)


def _in_proportion(samples: dict[str, int], total: int) -> dict[str, int]:
    """About so many in all, divided as the suite's own."""
    return {split: max(2, round(total * n / sum(samples.values()))) for split, n in samples.items()}


def _joined(instances: Sequence[Instance], splits: Sequence[str]) -> dict[str, Tensor]:
    """The samples of one task after those of another."""
    names = [f"{axis}_{split}" for split in splits for axis in "xy"]
    return {name: torch.cat([instance.arrays[name] for instance in instances]) for name in names}
