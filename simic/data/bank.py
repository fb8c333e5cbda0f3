"""Hold what ``prepare`` writes: arrays of training and held-out ones, standardised task by task."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from simic.data.batches import TaskMeta

SPLITS = ("train", "val", "test")
# Standard deviations beyond which the values of tables are cut off.
CLIP_DEVIATIONS = 5.0


@dataclass(frozen=True)
class Bank:
    """Arrays ``x_train`` … ``y_test`` by name, of training and held out, and the tasks that they belong to."""

    source: str
    source_sha256: str
    licence: str
    # Number of samples of each task, by split.
    samples: dict[str, int]
    arrays: dict[str, Tensor]
    # Outside tasks have arrays of their own for each width: ``x_train/30``.
    held_out_arrays: dict[str, Tensor]
    tasks: list[TaskMeta]
    held_out: list[TaskMeta]
    dropped: int = 0


def single_task_bank(
    task: TaskMeta,
    source: str,
    source_sha256: str,
    licence: str,
    arrays: Mapping[str, Tensor],
    dropped: int = 0,
) -> Bank:
    """Make the bank of a data set alone, whose test split is held out.

    Args:
        task: the only task.
        source: name of the data, to record.
        source_sha256: hash of the raw data, to record.
        licence: to record.
        arrays: ``x_train``, ``y_train`` … ``y_test``, standardised.
        dropped: number of duplicates that were left out, to record.
    """
    return Bank(
        source=source,
        source_sha256=source_sha256,
        licence=licence,
        samples={split: len(arrays[f"y_{split}"]) for split in SPLITS},
        arrays={name: array for name, array in arrays.items() if not name.endswith("_test")},
        held_out_arrays={name: array for name, array in arrays.items() if name.endswith("_test")},
        tasks=[task],
        held_out=[],
        dropped=dropped,
    )


def standardise(
    samples: Mapping[str, tuple[Tensor, Tensor]], tokens: bool, table: bool = False
) -> tuple[dict[str, Tensor], list[float], list[float]]:
    """Standardise one task by mean and deviation of its training samples.

    Args:
        samples: x and y of each split; vectors ``[N, D]`` become one row of pixels ``[N, 1, 1, D]``.
        tokens: samples are bytes of text, which stay as they are.
        table: columns are standardised one by one, clipped to ±5 and rounded to float16; labels become bytes.

    Returns:
        The arrays ``x_train``, ``y_train`` …, mean and deviation; the latter are empty for tokens.
    """
    arrays = {}
    if tokens:
        for split, (x, y) in samples.items():
            arrays[f"x_{split}"] = x
            arrays[f"y_{split}"] = y
        return arrays, [], []
    if table:
        samples = {split: (x.flatten(1), y) for split, (x, y) in samples.items()}
    mean, std = _statistics(samples["train"][0])
    for split, (x, y) in samples.items():
        scaled = (x - mean) / std
        images = (scaled if scaled.ndim == 4 else scaled[:, None, None]).contiguous()
        # Half the bytes on disk; five deviations are enough for any rule.
        arrays[f"x_{split}"] = (
            images.clamp(-CLIP_DEVIATIONS, CLIP_DEVIATIONS).half() if table else images
        )
        arrays[f"y_{split}"] = y.to(torch.uint8) if table else y
    return arrays, mean.flatten().tolist(), std.flatten().tolist()


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Measure mean and deviation of channels of images or features of vectors; a constant keeps scale 1."""
    dims = (0, 2, 3) if x.ndim == 4 else (0,)
    precise = x.to(torch.float64)
    mean = precise.mean(dims, keepdim=True)
    std = precise.std(dims, correction=0, keepdim=True)
    return mean.float(), torch.where(std > 0, std, 1.0).float()
