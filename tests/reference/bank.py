"""Prepared tasks and their samples in float64, read from files alone."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from simic.errors import SimicError

OF_VALIDATION = "samples of validation tasks that are in training tasks"
OF_HELD_OUT = "samples of held-out tasks that are in training tasks"


class NoReference(SimicError):
    """Raised for settings or networks that the reference does not implement: nothing is certified, nothing wrong."""


@dataclass(frozen=True)
class Samples:
    """Hold ``x [N, C, H, W]`` in float64 and ``y [N]`` of one task in one split."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Bank:
    """Describe tasks whose samples lie one after the other in one file."""

    file: Path
    shape: tuple[int, ...]
    classes: int
    task_classes: tuple[int, ...]
    counts: dict[str, int]  # samples of each task, by split
    of_training: int  # how many tasks, the first ones, are for training

    def samples(self, split: str, task: int) -> Samples:
        rows = slice(task * self.counts[split], (task + 1) * self.counts[split])
        with safe_open(self.file, framework="pt") as arrays:
            x, y = (arrays.get_slice(f"{name}_{split}")[rows] for name in "xy")
        return Samples(x.double() if x.is_floating_point() else x.long(), y.long())

    def validation_task(self, host: int) -> int:
        """Return the task of a host in validation: those that training does not see in turn, or the only one."""
        others = len(self.task_classes) - self.of_training
        return self.of_training + host % others if others else 0

    def chance_loss(self, task: int) -> float:
        """Return the cross-entropy of a uniform guess, in nats."""
        return math.log(self.task_classes[task])


def read(folder: Path) -> Bank:
    tasks = _json(folder, "meta")["tasks"]
    of_training = sum(task["group"] == "train" for task in tasks) if len(tasks) > 1 else 1
    return _bank(folder, "trainval", tasks, of_training)


def read_held_out(folder: Path) -> Bank:
    """Read the tasks that evaluation scores on: those of a suite with all three splits, or the test split of a data
    set. Tasks from outside the suite, whose samples are in arrays of their own, are left out.
    """
    tasks = [task for task in _json(folder, "held_out") if task["group"] != "outside"] or _json(
        folder, "meta"
    )["tasks"]
    return _bank(folder, "test", tasks, 0)


def read_evaluated(folder: Path) -> Bank:
    """Read the tasks that evaluation grows hosts on: the held-out tasks of a suite, or the one of a data set."""
    return read_held_out(folder) if _json(folder, "held_out") else read(folder)


def _json(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def _bank(folder: Path, arrays: str, tasks: Sequence[dict[str, Any]], of_training: int) -> Bank:
    meta = _json(folder, "meta")
    return Bank(
        file=folder / f"{arrays}.safetensors",
        shape=tuple(meta["shape"]),
        classes=int(meta["classes"]),
        task_classes=tuple(int(task["classes"]) for task in tasks),
        counts=dict(meta["samples"]),
        of_training=of_training,
    )


def shared_samples(folder: Path) -> Iterator[tuple[str, str, float]]:
    """Yield of every held-out task its name, and the share of its test samples that are in another split too, of its
    own or of all training tasks, bit for bit; likewise of what held-out tasks, and those that choose the checkpoint,
    are trained on.
    """
    trained = read(folder)
    tests = read_held_out(folder)
    names = _json(folder, "held_out")
    training = set[bytes]()
    if names:  # of a data set alone training is its own split
        rows = _rows(trained, "train")
        training = {row for own in rows[: trained.of_training] for row in own}
        for task, own in zip(_json(folder, "meta")["tasks"], rows, strict=True):
            if task["group"] == "val":
                yield task["name"], OF_VALIDATION, _share(own, training)
    own = read_evaluated(folder)
    splits = {split: _rows(own, split) for split in ("train", "val")}
    for task, test in enumerate(_rows(tests, "test")):
        name = names[task]["name"] if names else "the task"
        yield name, OF_HELD_OUT, _share(splits["train"][task], training)
        others = {split: set(rows[task]) for split, rows in splits.items()} | {
            "training tasks": training
        }
        for split, rows in others.items():
            yield name, f"test samples that are in {split}", _share(test, rows)


def _share(rows: Sequence[bytes], others: set[bytes]) -> float:
    return sum(map(others.__contains__, rows)) / len(rows)


def _rows(bank: Bank, split: str) -> list[list[bytes]]:
    with safe_open(bank.file, framework="pt") as arrays:
        x = arrays.get_tensor(f"x_{split}").flatten(1).contiguous().numpy()
    rows = x.view(f"V{x.itemsize * x.shape[1]}").ravel().tolist()
    count = bank.counts[split]
    return [rows[task * count : (task + 1) * count] for task in range(len(bank.task_classes))]
