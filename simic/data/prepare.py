"""Prepare a data set or a suite: write disjoint, stratified, standardised splits, whole or not at all."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import TypeAdapter
from safetensors.torch import save
from torch import Tensor

from simic import durable
from simic.data.bank import SPLITS, Bank, single_task_bank, standardise
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
from simic.data.suites.suite_bank import suite_bank
from simic.data.tasks import TASKS
from simic.errors import SimicError
from simic.params import Prepare, Split
from simic.rng import Purpose, key, permutation

# A single sequence has no standard error.
MIN_SEQUENCES = 2


def prepare(params: Prepare, rng_seed: int, out_dir: Path, data_dir: Path) -> None:
    """Write ``out_dir`` anew: trainval.safetensors, test.safetensors, held_out.json, meta.json.

    Args:
        params: the section ``prepare``.
        rng_seed: seed of the run; splits and drawn tasks are hashes of it.
        out_dir: folder to write.
        data_dir: folder where published files are looked for or fetched to, and where paths of user data start.

    Raises:
        SimicError: naming a missing, damaged or unusable file, with ``out_dir`` as before.
    """
    make_bank = suite_bank if params.task == "suite" else data_set_bank
    bank = make_bank(params, rng_seed, data_dir)
    write_bank(bank, params.task, params.split.model_dump(), rng_seed, out_dir)


def write_bank(
    bank: Bank,
    task: str,
    fractions: dict[str, float],
    rng_seed: int,
    out_dir: Path,
) -> None:
    """Write ``out_dir`` anew, whole or not at all.

    Args:
        bank: tasks and their arrays.
        task: name to record: ``prepare.task``, or own.
        fractions: shares of the splits, to record.
        rng_seed: seed of the splits, to record.
        out_dir: folder to write.
    """
    with durable.new_directory(out_dir) as folder:
        durable.write_synced(folder / TRAINVAL_FILE, save(bank.arrays))
        durable.write_synced(folder / TEST_FILE, save(bank.held_out_arrays))
        durable.write_synced(
            folder / HELD_OUT_FILE,
            TypeAdapter(list[TaskMeta]).dump_json(bank.held_out, indent=2),
        )
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
            sha256={
                name: durable.sha256(folder / name)
                for name in (TRAINVAL_FILE, TEST_FILE, HELD_OUT_FILE)
            },
        )
        durable.write_synced(folder / META_FILE, meta.to_json())


def data_set_bank(params: Prepare, rng_seed: int, data_dir: Path) -> Bank:
    """Make the bank of a data set alone: one task, whose test split is held out.

    Args:
        params: section ``prepare``.
        rng_seed: seed of the run.
        data_dir: folder of raw files.

    Raises:
        SimicError: naming what is wrong with the data.
    """
    # Read the source. Of text, repeated windows are dropped: they could be in two splits.
    source = complete(TASKS[params.task](params, rng_seed, data_dir))
    tokens = source.part is not None
    dropped = 0
    if tokens:
        source, dropped = drop_duplicates(source)
    elif params.samples is not None:
        source = subsample(source, params.samples, rng_seed)
    # Split it, and scale all splits by the training samples alone.
    indices = split_indices(source, params.split, rng_seed)
    samples = {split: (source.x[rows], source.y[rows]) for split, rows in indices.items()}
    arrays, mean, std = standardise(samples, tokens)
    task = TaskMeta(
        name=params.task,
        kind=params.task,
        group="train",
        classes=source.classes,
        parameters={},
        mean=mean,
        std=std,
    )
    return single_task_bank(task, source.name, source.sha256, source.licence, arrays, dropped)


def subsample(source: Source, samples: int, rng_seed: int) -> Source:
    """Choose so many samples in their order, of each class its share (largest remainders first, then lower labels).

    Args:
        source: all samples.
        samples: how many to choose.
        rng_seed: seed of the run; the choice is a hash of it.
    """
    if samples > len(source):
        raise SimicError(
            f"prepare.samples = {samples}: must be at most {len(source)}, all that {source.name} has"
        )
    counts = torch.bincount(source.y)
    # Each class gets its share, rounded down; the largest remainders get one more.
    quota = counts * samples // len(source)
    remainders = (counts * samples % len(source)).argsort(descending=True, stable=True)
    quota[remainders[: samples - int(quota.sum())]] += 1
    chosen = []
    for label, count in enumerate(quota.tolist()):
        members = torch.nonzero(source.y == label).flatten()
        # The samples of a class are chosen by hash.
        order = permutation(key(rng_seed, Purpose.SUBSAMPLE, label), len(members))
        chosen.append(members[order[:count]])
    return source.take(torch.cat(chosen).sort().values)


def split_indices(source: Source, fractions: Split, rng_seed: int) -> dict[str, Tensor]:
    """Find sorted sample indices by split: the parts that the source came in, else a stratified split.

    Args:
        source: samples without duplicates, or text with its parts.
        fractions: shares of validation and test, where the source has no parts.
        rng_seed: seed of the run.

    Raises:
        SimicError: a split would be too small.
    """
    if source.part is None:
        shares = {"val": fractions.val, "test": fractions.test}
        names = [str(label) for label in range(source.classes)]
        return stratified_split(
            source.y, shares, rng_seed, source.name, names, equal_rows(source.x.numpy())
        )
    parts = {
        split: torch.nonzero(source.part == number).flatten() for number, split in enumerate(SPLITS)
    }
    for split, rows in parts.items():
        if len(rows) < MIN_SEQUENCES:
            raise SimicError(
                f"{source.name}: {split} has {len(rows)} distinct sequences, must have at least {MIN_SEQUENCES}"
            )
    return parts


def stratified_split(
    y: Tensor,
    shares: Mapping[str, float],
    rng_seed: int,
    name: str,
    classes: Sequence[str],
    firsts: Tensor,
    few: bool = False,
) -> dict[str, Tensor]:
    """Split samples: each class is shuffled by its own stream and cut at the rounded shares.

    Equal samples stay together, in the class of the first.

    Args:
        y: labels ``[N]``.
        shares: of each split but ``train``, which gets the rest.
        rng_seed: seed of the run.
        name: of the data, for messages.
        classes: names of the classes.
        firsts: for each sample the place of the first that is equal to it, ``[N]``.
        few: a split may lack a class.

    Returns:
        Sorted sample indices of ``train`` and of each split that has a share.
    """
    parts: dict[str, list[Tensor]] = {split: [] for split in ("train", *shares)}
    counts = torch.bincount(firsts, minlength=len(y))
    for label, class_name in enumerate(classes):
        # A unit is all samples that equal one, at the place of the first.
        units = torch.nonzero((y == label) & (counts > 0)).flatten()
        units = units[permutation(key(rng_seed, Purpose.SPLIT, label), len(units))]
        members = int(counts[units].sum())
        # What rounding leaves over is trained on.
        sizes = {split: round(members * share) for split, share in shares.items()}
        sizes = {"train": members - sum(sizes.values()), **sizes}
        place = _places(counts[units], list(sizes.values()), len(y))
        if not few and len(place.unique()) < len(parts):
            raise SimicError(
                f"{name}: class {class_name} has {len(units)} different samples (copies count once, in the class of "
                f"the first): too few for {', '.join(sizes)}; leave the class out, join it with another or bring more"
            )
        for number, rows in enumerate(parts.values()):
            rows.append(units[place == number])
    # Copies go where the first of them went.
    splits = {
        split: torch.isin(firsts, torch.cat(units)).nonzero().flatten()
        for split, units in parts.items()
    }
    if empty := [split for split, rows in splits.items() if not len(rows)]:
        raise SimicError(
            f"{name}: {len(y)} sample(s): too few, the {empty[0]} split would be empty; bring more"
        )
    return splits


def _places(counts: Tensor, sizes: list[int], most: int) -> Tensor:
    """Assign units of so many samples to splits of these sizes; a unit goes where its first sample falls."""
    ends = torch.tensor(sizes).cumsum(0)
    place = torch.bucketize(counts.cumsum(0) - counts, ends, right=True)
    # Units are as large as their copies are many, so a split may get none: it gets the smallest of the fullest one.
    for empty in [number for number in range(len(sizes)) if not (place == number).any()]:
        fullest = place == place.bincount(minlength=len(sizes)).argmax()
        if fullest.sum() > 1:
            place[torch.where(fullest, counts, most + 1).argmin()] = empty
    return place
