"""Hold what ``prepare`` writes: arrays of training and held-out ones, standardised task by task."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from simic.data.batches import TaskMeta

SPLITS = ("train", "val", "test")
LIMIT = 5.0  # deviations: beyond it rows of tables are cut off


@dataclass(frozen=True)
class Bank:
    """Arrays ``x_train`` … ``y_test`` by name, of training and held out, and the tasks that they belong to."""

    source: str
    source_sha256: str
    licence: str
    samples: dict[str, int]  # of each task
    arrays: dict[str, Tensor]
    held_out_arrays: dict[str, Tensor]  # those of outside tasks by width too: ``x_train/30``
    tasks: list[TaskMeta]
    held_out: list[TaskMeta]
    dropped: int = 0


def bank_of_one(
    task: TaskMeta, source: str, source_sha256: str, licence: str, arrays: Mapping[str, Tensor], dropped: int = 0
) -> Bank:
    """Return the bank of a data set alone, whose test split is held out."""
    test = {name: array for name, array in arrays.items() if name.endswith("_test")}
    others = {name: array for name, array in arrays.items() if name not in test}
    samples = {split: len(arrays[f"y_{split}"]) for split in SPLITS}
    return Bank(source, source_sha256, licence, samples, others, test, [task], [], dropped)


def standardised(
    samples: Mapping[str, tuple[Tensor, Tensor]], tokens: bool, table: bool = False
) -> tuple[dict[str, Tensor], list[float], list[float]]:
    """Return the arrays ``x_train``, ``y_train`` … of one task, standardised by mean and deviation of its training
    samples, and both; these are empty for ``tokens``, which stay as they are. Vectors ``[N, D]`` become one row of
    pixels ``[N, 1, 1, D]``. Columns of a ``table`` are standardised one by one, clipped to ±5 and rounded to float16;
    its labels are bytes.
    """
    if table:
        samples = {split: (x.flatten(1), y) for split, (x, y) in samples.items()}
    nothing = torch.empty(0)
    mean, std = (nothing, nothing) if tokens else statistics(samples["train"][0])
    arrays = {}
    for split, (x, y) in samples.items():
        if not tokens:
            x = (x - mean) / std
            x = (x if x.ndim == 4 else x[:, None, None]).contiguous()
        if table:
            x, y = x.clamp(-LIMIT, LIMIT).half(), y.to(torch.uint8)
        arrays |= {f"x_{split}": x, f"y_{split}": y}
    return arrays, mean.flatten().tolist(), std.flatten().tolist()


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation per channel of images or feature of vectors, to broadcast; a constant keeps scale 1."""
    dims = (0, 2, 3) if x.ndim == 4 else (0,)
    wide = x.to(torch.float64)
    mean, std = wide.mean(dims, keepdim=True), wide.std(dims, correction=0, keepdim=True)
    return mean.float(), torch.where(std > 0, std, 1.0).float()
