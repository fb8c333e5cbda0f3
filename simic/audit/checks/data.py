"""Training and validation samples: standardised by training, nothing in common."""

import torch

from simic.audit.checks.base import Outcome, undecided
from simic.audit.checks.recomputed import concluded, recomputed
from simic.audit.findings import Evidence, number
from simic.audit.record import RunRecord
from simic.data.batches import Dataset

TASKS, SAMPLES = 64, 512  # the first of them, for the sake of time
CLIPPED = 5.0  # what the values of a table are within
OFF = 1e-3  # mean and deviation of standardised samples


@recomputed(
    subject="growth",
    id="C11",
    title="Training and validation samples do not belong together",
    question="Are samples standardised by the training split alone, and is none in two splits?",
    needs=("checkpoints", "samples"),
    threshold=(
        f"a validation sample that is a training sample; training samples whose mean is not 0 and deviation not 1 "
        f"within {number(OFF)}"
    ),
    source="definition of splits; tolerance ours",
    fix="Run simic prepare again.",
)
def _splits_apart(run: RunRecord) -> Outcome:
    assert run.samples is not None  # stated in needs
    train, val = run.samples
    if not train.x.is_floating_point():
        return undecided("sequences have no labels of their own")
    problems, tasks = list[Evidence](), range(min(train.tasks, TASKS))
    for task in tasks:
        means = len(run.tasks[task].mean) if run.tasks is not None else 0  # none: samples are as they came
        off = _off_standard(train, task, means) if means else 0.0
        if off > OFF:
            problems.append({"what": "standardised by other samples", "task": task, "off": off})
        copies = len(_samples(train, task) & _samples(val, task))
        if copies:
            problems.append({"what": "samples in both splits", "task": task, "samples": copies})
    return concluded(problems, f"{len(tasks)} tasks")


def _samples(split: Dataset, task: int) -> set[bytes]:
    """Return the bytes of the first samples of a task."""
    first = task * len(split)
    return {row.numpy().tobytes() for row in split.x[first : first + min(SAMPLES, len(split))]}


def _off_standard(split: Dataset, task: int, means: int) -> float:
    """Return how far varying channels (or features, with as many ``means``) are from mean 0 and deviation 1; columns
    that were clipped after standardising are left out.
    """
    x = split.x[task * len(split) : (task + 1) * len(split)].double()
    rows = x.transpose(0, 1).flatten(1) if means == x.shape[1] else x.flatten(1).T
    mean, std = rows.mean(1), rows.std(1, correction=0)
    varies = (std > 0) & (rows.abs().amax(1) != CLIPPED)
    return float(torch.cat((mean[varies].abs(), (std[varies] - 1.0).abs(), x.new_zeros(1))).max())
