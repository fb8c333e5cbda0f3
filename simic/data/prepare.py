"""Prepare a data set or a suite: write disjoint, stratified, standardised splits, whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import TypeAdapter
from safetensors.torch import save
from torch import Tensor

from simic import durable
from simic.data.bank import SPLITS, Bank, bank_of_one, standardised
from simic.data.batches import (
    HELD_OUT_FILE,
    META_FILE,
    SCHEMA_VERSION,
    TEST_FILE,
    TRAINVAL_FILE,
    Meta,
    TaskMeta,
)
from simic.data.sources import Source, complete, drop_duplicates, equal_rows
from simic.data.suites.suite_bank import many
from simic.data.tasks import TASKS
from simic.errors import SimicError
from simic.params import Prepare, Split
from simic.rng import Purpose, key, permutation

MIN_SEQUENCES = 2  # of a single one no standard error is known


def prepare(params: Prepare, rng_seed: int, out_dir: Path, data_dir: Path) -> None:
    """Write ``out_dir`` anew: trainval.safetensors, test.safetensors, held_out.json, meta.json.

    Published files are looked for in ``data_dir``, or fetched to it; paths of user data start there. SimicError naming
    a missing, damaged or unusable file, with ``out_dir`` as before.
    """
    bank = (many if params.task == "suite" else single)(params, rng_seed, data_dir)
    write_bank(bank, params.task, params.split.model_dump(), rng_seed, out_dir)


def write_bank(bank: Bank, task: str, fractions: dict[str, float], rng_seed: int, out_dir: Path) -> None:
    """Write ``out_dir`` anew, whole or not at all."""
    files = [TRAINVAL_FILE, TEST_FILE, HELD_OUT_FILE]
    with durable.new_directory(out_dir) as folder:
        durable.write_synced(folder / TRAINVAL_FILE, save(bank.arrays))
        durable.write_synced(folder / TEST_FILE, save(bank.held_out_arrays))
        durable.write_synced(folder / HELD_OUT_FILE, TypeAdapter(list[TaskMeta]).dump_json(bank.held_out, indent=2))
        meta = Meta(
            schema_version=SCHEMA_VERSION,
            task=task,
            source=bank.source,
            source_sha256=bank.source_sha256,
            licence=bank.licence,
            classes=max(task.classes for task in bank.tasks + bank.held_out),
            shape=tuple(bank.arrays["x_train"].shape[1:]),
            samples=bank.samples,
            duplicates_dropped=bank.dropped,
            split_fractions=fractions,
            split_rng_seed=rng_seed,
            tasks=bank.tasks,
            sha256={name: durable.sha256(folder / name) for name in files},
        )
        durable.write_synced(folder / META_FILE, meta.to_json())


def single(params: Prepare, rng_seed: int, data_dir: Path) -> Bank:
    """Return the bank of a data set alone: one task, whose test split is held out."""
    source, dropped = complete(TASKS[params.task](params, rng_seed, data_dir)), 0
    if source.part is not None:
        source, dropped = drop_duplicates(source)
    if source.part is None and params.samples is not None:
        source = subsample(source, params.samples, rng_seed)
    indices = split_indices(source, params.split, rng_seed)
    samples = {split: (source.x[chosen], source.y[chosen]) for split, chosen in indices.items()}
    arrays, mean, std = standardised(samples, source.part is not None)
    name, classes = params.task, source.classes
    task = TaskMeta(name=name, kind=name, group="train", classes=classes, parameters={}, mean=mean, std=std)
    return bank_of_one(task, source.name, source.sha256, source.licence, arrays, dropped)


def subsample(source: Source, samples: int, rng_seed: int) -> Source:
    """Return so many samples in their order, of each class its share (largest remainders first, then lower labels)."""
    if samples > len(source):
        raise SimicError(f"prepare.samples = {samples}: must be at most {len(source)}, all that {source.name} has")
    counts = torch.bincount(source.y)
    share = counts * samples
    quota = share // len(source)
    remainders = (share % len(source)).argsort(descending=True, stable=True)
    quota[remainders[: samples - int(quota.sum())]] += 1
    kept = []
    for label, keep in enumerate(quota.tolist()):
        members = torch.nonzero(source.y == label).flatten()
        kept.append(members[permutation(key(rng_seed, Purpose.SUBSAMPLE, label), len(members))[:keep]])
    return source.take(torch.cat(kept).sort().values)


def split_indices(source: Source, fractions: Split, rng_seed: int) -> dict[str, Tensor]:
    """Return sorted sample indices by split: the parts that the source came in, else a stratified split."""
    if source.part is None:
        shares, names = {"val": fractions.val, "test": fractions.test}, [*map(str, range(source.classes))]
        return cut(source.y, shares, rng_seed, source.name, names, equal_rows(source.x.numpy()))
    parts = {split: torch.nonzero(source.part == number).flatten() for number, split in enumerate(SPLITS)}
    for split, chosen in parts.items():
        if len(chosen) < MIN_SEQUENCES:
            raise SimicError(
                f"{source.name}: {split} has {len(chosen)} distinct sequences, must have at least {MIN_SEQUENCES}"
            )
    return parts


def cut(
    y: Tensor,
    shares: dict[str, float],
    rng_seed: int,
    name: str,
    classes: Sequence[str],
    firsts: Tensor,
    few: bool = False,
) -> dict[str, Tensor]:
    """Return sorted sample indices of ``train`` and of each split that has a share: each class is shuffled by its own
    stream and cut at the rounded shares. Equal samples (``firsts``, for each the place of the first) stay together, in
    the class of the first. SimicError where a split lacks a class, unless classes may have ``few`` samples.
    """
    parts: dict[str, list[Tensor]] = {split: [] for split in ("train", *shares)}
    counts = torch.bincount(firsts, minlength=len(y))
    for label, shown in enumerate(classes):
        units = torch.nonzero((y == label) & (counts > 0)).flatten()
        units = units[permutation(key(rng_seed, Purpose.SPLIT, label), len(units))]
        members = int(counts[units].sum())
        sizes = {split: round(members * share) for split, share in shares.items()}
        sizes = {"train": members - sum(sizes.values()), **sizes}
        ends = torch.tensor([*sizes.values()]).cumsum(0)
        # A unit goes where its first sample falls.
        place = torch.bucketize(counts[units].cumsum(0) - counts[units], ends, right=True)
        # A split that large units left without any gets the smallest of the fullest one.
        for empty in [k for k in range(len(parts)) if not (place == k).any()]:
            fullest = place == place.bincount(minlength=len(parts)).argmax()
            if fullest.sum() > 1:
                place[torch.where(fullest, counts[units], len(y) + 1).argmin()] = empty
        chosen = {split: units[place == k] for k, split in enumerate(parts)}
        if not few and not all(len(each) for each in chosen.values()):
            raise SimicError(
                f"{name}: class {shown} has {members} samples: a split of {sizes} leaves one empty; "
                "leave the class out, join it with another or bring more"
            )
        for split, each in chosen.items():
            parts[split].append(each)
    splits = {split: torch.isin(firsts, torch.cat(chosen)).nonzero().flatten() for split, chosen in parts.items()}
    if empty := [split for split, chosen in splits.items() if not len(chosen)]:
        raise SimicError(f"{name}: {len(y)} sample(s): too few, the {empty[0]} split would be empty; bring more")
    return splits
