"""Load prepared tasks onto the device, and order the samples of an epoch.

What training must not see is a file of its own that only ``load_held_out`` opens, which headroom, evaluation and
the audit alone call: the test split of a data set, or all samples of a suite's held-out tasks.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, Self, get_args

import torch
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from simic import durable
from simic.errors import SimicError
from simic.memory import machine_bytes
from simic.rng import Purpose, key, permutation
from simic.safe_read import read_file

SCHEMA_VERSION = 5
META_FILE = "meta.json"
TRAINVAL_FILE = "trainval.safetensors"
TEST_FILE = "test.safetensors"
HELD_OUT_FILE = "held_out.json"
# The only file beside meta.json for the task gym.
ENVIRONMENT_FILE = "environment.json"
MISSING = "run simic prepare first"
TaskGroup = Literal["train", "val", "held_out", "held_out_kinds", "outside"]
SplitName = Literal["train", "val", "test"]


class TaskMeta(BaseModel):
    """One task of a bank. The controller trains on the tasks of group ``train``, is chosen by those of ``val`` and
    evaluated on held-out ones; tasks of group ``outside`` were not made for the suite. A data set alone is one task of
    group ``train``. ``mean`` and ``std`` are empty where samples stayed as they came: text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str
    group: TaskGroup
    classes: int
    parameters: dict[str, JsonValue]
    mean: list[float]
    std: list[float]


class Meta(BaseModel):
    """Content of meta.json. ``tasks`` are those of trainval.safetensors; held-out ones are listed in held_out.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int
    task: str
    source: str
    source_sha256: str
    licence: str
    # Classes of the task that has most.
    classes: int
    shape: tuple[int, ...]
    # Number of samples of each task, by split.
    samples: dict[str, int]
    duplicates_dropped: int
    split_fractions: dict[str, float]
    split_rng_seed: int
    tasks: list[TaskMeta]
    sha256: dict[str, str]

    def to_json(self) -> bytes:
        return durable.with_checksum(self.model_dump(mode="json"))

    def of_group(self, group: TaskGroup) -> list[int]:
        """List the places of the tasks of a group; of a single task its own, whatever the group."""
        if len(self.tasks) == 1:
            return [0]
        return [place for place, task in enumerate(self.tasks) if task.group == group]

    def kinds(self) -> tuple[list[str], list[int]]:
        """List the kinds of group ``train``, sorted, and for each task the number of its kind, -1 for a kind that
        training does not have.
        """
        names = sorted({self.tasks[place].kind for place in self.of_group("train")})
        return names, [names.index(task.kind) if task.kind in names else -1 for task in self.tasks]


@dataclass(frozen=True)
class Dataset:
    """One split of T tasks of N samples each, the tasks one after another: ``x [T·N, C, H, W]`` float32 and ``y [T·N]``
    int64; or byte sequences ``x [T·N, L]`` int64 and the byte after each position, ``y [T·N, L]``, of 256 classes.

    ``task_classes [T]`` where tasks differ in their number of classes; ``classes`` is the largest. ``split`` says which
    split of prepared data it is; None: data that were made in memory.
    """

    x: Tensor
    y: Tensor
    classes: int
    task_classes: tuple[int, ...] = ()
    split: SplitName | None = None

    def of(self, split: SplitName) -> Self:
        """Give these data where they are of that split; ValueError where they are of another one."""
        # Whoever trains or scores says what on: a score of the wrong split would look like any other.
        if self.split not in (split, None):
            raise ValueError(f"data of the split {self.split!r} where that of {split!r} belongs")
        return self

    def __len__(self) -> int:
        """Count the samples of each task."""
        return self.y.shape[0] // self.tasks

    @property
    def tasks(self) -> int:
        return max(1, len(self.task_classes))

    @cached_property
    def lacking(self) -> Tensor | None:
        """Mark the classes that a task does not have, bool ``[T, classes]``; None where all have all."""
        if all(count == self.classes for count in self.task_classes):
            return None
        counts = torch.tensor(self.task_classes, device=self.y.device)
        return torch.arange(self.classes, device=self.y.device) >= counts[:, None]

    @cached_property
    def label_range(self) -> tuple[int, int]:
        """Find the least and the largest label."""
        return int(self.y.min()), int(self.y.max())

    @cached_property
    def chance_loss(self) -> Tensor:
        """Compute the cross-entropy of a uniform guess in nats, float64 ``[T]``."""
        counts = self.task_classes or (self.classes,)
        return torch.tensor(
            [math.log(count) for count in counts],
            dtype=torch.float64,
            device=self.y.device,
        )

    def of_tasks(self, tasks: Tensor, samples: slice) -> tuple[Tensor, Tensor]:
        """Gather some samples of one task for each host ``[E]``: ``x [E, n, …]`` and ``y [E, n, …]``."""
        places = torch.arange(len(self), device=self.y.device)[samples]
        rows = places + tasks[:, None] * len(self)
        return self.x[rows], self.y[rows]

    @property
    def shape(self) -> tuple[int, ...]:
        """Tell the shape of one sample: (C, H, W), or (L,) for text."""
        return tuple(self.x.shape[1:])


def load_split(
    prepared_dir: Path,
    split: Literal["train", "val"],
    device: torch.device | str = "cpu",
) -> Dataset:
    """Load the training or validation split of the tasks of training.

    Args:
        prepared_dir: folder that ``prepare`` wrote.
        split: which of the two.
        device: where the arrays go, whole: an epoch then copies nothing.

    Raises:
        SimicError: for "test" and for damaged files.
    """
    if split not in ("train", "val"):
        raise SimicError(
            f"split {split!r}: must be 'train' or 'val'; the test split is opened by evaluation alone"
        )
    meta = read_meta(prepared_dir)
    arrays = _arrays(prepared_dir / TRAINVAL_FILE, meta)
    return _dataset(arrays, split, meta.classes, meta.tasks, device)


@dataclass(frozen=True)
class HeldOut:
    """Tasks that headroom and evaluation score on; train and val of a single data set are those of training.
    ``outside`` has a record for each width of the tasks that were not made for the suite.
    """

    tasks: list[TaskMeta]
    train: Dataset
    val: Dataset
    test: Dataset
    outside: tuple["HeldOut", ...] = ()


def load_held_out(prepared_dir: Path, device: torch.device | str = "cpu") -> HeldOut:
    """Load held-out data, for headroom and evaluation alone: nothing that trains or selects may see them."""
    meta = read_meta(prepared_dir)
    tasks = TypeAdapter(list[TaskMeta]).validate_json(_verified(prepared_dir / HELD_OUT_FILE, meta))
    arrays = _arrays(prepared_dir / TEST_FILE, meta)
    # A single data set: only its test split is held out.
    if not tasks:
        return HeldOut(
            tasks=meta.tasks,
            train=load_split(prepared_dir, "train", device),
            val=load_split(prepared_dir, "val", device),
            test=_dataset(arrays, "test", meta.classes, meta.tasks, device),
        )

    def record(tasks: list[TaskMeta], suffix: str = "") -> HeldOut:
        train, val, test = [
            _dataset(arrays, split, meta.classes, tasks, device, suffix)
            for split in get_args(SplitName)
        ]
        return HeldOut(tasks, train, val, test)

    # Tasks from outside the suite have widths of their own, and a record for each.
    outside = [task for task in tasks if task.group == "outside"]
    widths = sorted({len(task.mean) for task in outside})
    by_width = [
        record([task for task in outside if len(task.mean) == width], f"/{width}")
        for width in widths
    ]
    return replace(
        record([task for task in tasks if task.group != "outside"]),
        outside=tuple(by_width),
    )


def _dataset(
    arrays: dict[str, Tensor],
    split: SplitName,
    classes: int,
    tasks: list[TaskMeta],
    device: torch.device | str,
    suffix: str = "",
) -> Dataset:
    x = arrays[f"x_{split}{suffix}"].to(device)
    y = arrays[f"y_{split}{suffix}"].to(device)
    # Tasks say how many classes they have where that is not the same for all.
    counts = (
        tuple(task.classes for task in tasks)
        if len(tasks) > 1 or tasks[0].classes < classes
        else ()
    )
    # Bytes are kept as bytes on disk: an eighth of the size.
    x = x.float() if x.is_floating_point() else x.long()
    return Dataset(x, y.long(), classes, counts, split)


def _arrays(path: Path, meta: Meta) -> dict[str, Tensor]:
    try:
        return load(_verified(path, meta))
    except SafetensorError as error:
        raise SimicError(f"{path}: not a safetensors file: {error}") from None


def _verified(path: Path, meta: Meta) -> bytes:
    content = read_file(path, machine_bytes(), MISSING)
    if durable.sha256_of(content) != meta.sha256.get(path.name):
        raise SimicError(
            f"{path}: damaged (its sha256 is not the one in {META_FILE}); run simic prepare again"
        )
    return content


def read_meta(prepared_dir: Path) -> Meta:
    """Read meta.json; SimicError naming the file when it is missing, damaged or of another schema version."""
    path = prepared_dir / META_FILE
    return _meta(path, read_file(path, machine_bytes(), MISSING))


# A stage reads it several times. Remembered by its bytes, so that a changed file is read anew.
@lru_cache(maxsize=1)
def _meta(path: Path, written: bytes) -> Meta:
    try:
        content = durable.checked(written)
        # First: what another version wrote may have other keys.
        if (version := content.get("schema_version")) != SCHEMA_VERSION:
            raise SimicError(
                f"{path}: schema version {version}, this one reads {SCHEMA_VERSION}: run simic prepare"
            )
        return Meta.model_validate(content)
    except ValueError as error:
        raise SimicError(
            f"{path}: damaged: {str(error).splitlines()[0]}; run simic prepare again"
        ) from None


def data_hash(prepared_dir: Path) -> str:
    """Hash the prepared data: the hex sha256 of meta.json, which holds the hash of every other file."""
    read_meta(prepared_dir)
    return durable.sha256(prepared_dir / META_FILE)


def epoch_order(
    rng_seed: int,
    iteration: int,
    env_ids: Tensor,
    step: int,
    samples: int,
    batch_size: int,
    limit: int | Literal["all"] = "all",
) -> Tensor:
    """Order the samples of one epoch of each host.

    A pass over all samples is a fresh permutation per (iteration, env, pass), without the last partial batch.

    Args:
        rng_seed: seed of the run.
        iteration: number of the iteration, or a namespace of evaluation.
        env_ids: numbers of the hosts, ``[E]``.
        step: number of the epoch in its episode.
        samples: number of training samples of a task.
        batch_size: samples in a minibatch.
        limit: batches in an epoch; several epochs then share a pass, until too few batches of it are left.

    Returns:
        Sample indices ``[E, batches, batch_size]``, int64.
    """
    available = samples // batch_size
    batches = available if limit == "all" else limit
    if not 1 <= batches <= available:
        raise SimicError(
            f"batches_per_epoch {limit} of batch_size {batch_size}: "
            f"the training split has {samples} samples, enough for {available} whole batches"
        )
    # Several epochs share a pass over all samples, each with a part of it.
    number, part = divmod(step, available // batches)
    stream = key(rng_seed, Purpose.BATCH_ORDER, iteration, env_ids, number, device=env_ids.device)
    size = batches * batch_size
    return _pass(stream, samples)[..., part * size : (part + 1) * size].reshape(
        -1, batches, batch_size
    )


# Streams, number of samples and their permutations, of the last call. A cache only: the permutation is a hash of the
# stream, so whether it is remembered changes no number.
_last_pass: list[tuple[Tensor, int, Tensor]] = []


def _pass(stream: Tensor, samples: int) -> Tensor:
    """Draw a permutation of the samples for each stream, ``[E, samples]``.

    On the CPU the last one is remembered, since sorting it takes longer than an epoch of small hosts.
    """
    # On a GPU, to compare would make the CPU wait.
    if stream.device.type != "cpu":
        return permutation(stream, samples)
    if not _last_pass or _last_pass[0][1] != samples or not torch.equal(_last_pass[0][0], stream):
        _last_pass[:] = [(stream, samples, permutation(stream, samples))]
    return _last_pass[0][2]
