"""Training and validation data: the same task, and no common samples."""

import numpy as np
import torch
from numpy.typing import NDArray

from simic.audit.checks.base import Outcome, check, undecided
from simic.audit.checks.recomputed import RecomputedCheck, concluded
from simic.audit.checks.shared import MOST_EVIDENCE
from simic.audit.findings import Evidence, number, percent
from simic.audit.record import RunRecord
from simic.data.batches import Dataset, TaskMeta

Samples = NDArray[np.float32]
TASKS, SAMPLES = 64, 512  # the first of them, for the sake of time
CLIPPED = 5.0  # what the values of a table are within


@check
class SplitsApart(RecomputedCheck):
    """Check C11: labels agree across splits, and no sample is in both."""

    id = "C11"
    title = "Training and validation samples do not belong together"
    counted = "task"
    question = "Do neighbours share labels across splits as often as within one, and is no sample in both?"
    needs = ("checkpoints", "samples")
    ERRORS, SHARE, OFF = 6.0, 0.5, 1e-3
    threshold = (
        f"agreement across, above that of labels dealt out at random, < {percent(SHARE)} of that within and more than "
        f"{ERRORS:g} standard errors over tasks below it; a validation sample that is a training sample; a task "
        "with the samples of one of another group; training samples whose mean is not 0 and deviation not 1 within "
        f"{number(OFF)}"
    )
    source = "1-nearest-neighbour error is at most twice the Bayes error (Cover and Hart 1967); limits ours"
    fix = "Run simic prepare again; look for labels that moved against their samples."
    passes_when = "labels agree and no sample is in both"

    def examine(self, run: RunRecord) -> Outcome:
        assert run.samples is not None
        train, val = run.samples
        if not train.x.is_floating_point():
            return undecided("sequences have no labels of their own").of(0)
        within, across, problems = list[float](), list[float](), list[Evidence]()
        chance = list[float]()
        for task in range(min(train.tasks, TASKS)):
            (x, y), (other, labels) = (_of_task(split, task, SAMPLES) for split in (train, val))
            distance = _distances(x, x)
            np.fill_diagonal(distance, np.inf)
            apart = _distances(other, x)
            within.append(float((y[distance.argmin(axis=1)] == y).mean()))
            across.append(float((y[apart.argmin(axis=1)] == labels).mean()))
            chance.append(float(((np.bincount(y) / len(y)) ** 2).sum()))
            means = len(run.tasks[task].mean) if run.tasks is not None else 0  # none: samples are as they came
            off = _off_standard(train, task, means) if means else 0.0
            if off > self.OFF:
                problems.append({"what": "standardised by other samples", "task": task, "off": off})
            copies = int((np.abs(other - x[apart.argmin(axis=1)]).max(axis=1) == 0).sum())
            if copies:
                problems.append({"what": "samples in both splits", "task": task, "samples": copies})
        problems += _twice(run)
        error = _error(within, across, min(len(val), SAMPLES))
        known, kept = (float(np.mean(found)) - float(np.mean(chance)) for found in (within, across))
        # Samples that a task has more than once agree with themselves within a split, so the two need not be equal.
        if known - kept > self.ERRORS * error and kept < self.SHARE * known:
            problems.append({"what": "labels", "within": float(np.mean(within)), "across": float(np.mean(across))})
        shares = [f"{np.mean(found):.1%}" for found in (across, within)]
        measured = f"{shares[0]} agree across, {shares[1]} within, {len(within)} tasks"
        return concluded(problems[:MOST_EVIDENCE], measured).of(len(within))


def _twice(run: RunRecord) -> list[Evidence]:
    """Return tasks that are the same as one of another group: mean and deviation of their training samples are equal to
    the last bit.
    """
    seen, problems = dict[tuple[str, tuple[float, ...]], TaskMeta](), list[Evidence]()
    for task in run.tasks or ():
        first = seen.setdefault((task.kind, (*task.mean, *task.std)), task)
        if task.mean and first.group != task.group:
            problems.append({"what": "the same samples in two groups", "first": first.name, "second": task.name})
    return problems


def _of_task(split: Dataset, task: int, most: int) -> tuple[Samples, NDArray[np.int64]]:
    """Return the first samples of a task, flat, and their labels."""
    rows = slice(task * len(split), task * len(split) + min(most, len(split)))
    return split.x[rows].flatten(1).numpy(), split.y[rows].numpy()


def _off_standard(split: Dataset, task: int, means: int) -> float:
    """Return how far varying channels (or features, with as many ``means``) are from mean 0 and deviation 1; columns
    that were clipped after standardising are left out.
    """
    x = split.x[task * len(split) : (task + 1) * len(split)].double()
    rows = x.transpose(0, 1).flatten(1) if means == x.shape[1] else x.flatten(1).T
    mean, std = rows.mean(1), rows.std(1, correction=0)
    varies = (std > 0) & (rows.abs().amax(1) != CLIPPED)
    return float(torch.cat((mean[varies].abs(), (std[varies] - 1.0).abs(), x.new_zeros(1))).max())


def _distances(first: Samples, second: Samples) -> Samples:
    """Return squared distances ``[N, M]``."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)
    return squares - 2.0 * first @ second.T


def _error(within: list[float], across: list[float], samples: int) -> float:
    """Return the standard error of the difference of the two means, over tasks, or over the samples of a lone task."""
    difference = np.array(across) - np.array(within)
    if len(difference) > 1:
        return float(difference.std(ddof=1)) / np.sqrt(len(difference))
    return float(1.0 / np.sqrt(2.0 * samples))
