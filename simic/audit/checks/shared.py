"""Helpers of several checks: constants, evidence, and small statistics."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from simic.audit import limits
from simic.audit.findings import Evidence
from simic.audit.record import RunRecord
from simic.certify import streams

Values = NDArray[np.float64]
OURS = limits.source()
MOST_EVIDENCE = 5  # rows shown of a finding

# Settings of several checks; all ours.
ENOUGH_ROWS = 32  # what is measured of a head on fewer rows is noise
PERSISTENT = 5  # consecutive updates: as many as the default run has without its first
TREND = 20  # iterations by which a trend is judged
NOISE = 2.0  # standard errors
RATE_FALLS = 0.8  # share of a linear learning rate that is gone in the last update
MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, of a normal distribution: sqrt(pi / 2)


def where(run: RunRecord, name: str, bad: NDArray[np.bool_]) -> tuple[Evidence, ...]:
    """Return the worst rows of an update metric: iteration and value."""
    values, iterations = run.updates.column(name), run.updates.column("iteration")
    rows = np.flatnonzero(bad)
    order = rows[np.argsort(-np.abs(np.nan_to_num(values[rows], nan=np.inf)), kind="stable")][:MOST_EVIDENCE]
    return tuple({"iteration": int(iterations[i]), name: _plain(values[i])} for i in order)


def where_steps(run: RunRecord, bad: NDArray[np.bool_], name: str, values: NDArray[Any]) -> tuple[Evidence, ...]:
    """Return the first bad steps, each with its entry of ``values``, called ``name``."""
    iterations, steps = run.steps.column("iteration"), run.steps.column("step")
    return tuple(
        {"iteration": int(iterations[r]), "step": int(steps[r]), "env": int(e), name: _plain(values[r, e])}
        for r, e in np.argwhere(bad)[:MOST_EVIDENCE]
    )


def _plain(value: Any) -> float | str:
    return float(value) if isinstance(value, np.floating) and np.isfinite(value) else str(value)


def episodes(run: RunRecord) -> list[NDArray[np.intp]]:
    """Return row indices of each iteration's steps, in order."""
    iterations = run.steps.column("iteration")
    order = np.lexsort((run.steps.column("step"), iterations))
    return np.split(order, np.flatnonzero(np.diff(iterations[order])) + 1)


def length_of(run: RunRecord, iteration: int) -> int:
    """Return the length of the training episodes of an iteration by the params."""
    return streams.episode_length(run.params.train.episode_steps, run.params.rng_seed, iteration)


def schedule_done(run: RunRecord) -> Values:
    """Return the progress of schedules in each update, from 0 to 1; only updates that took a step count."""
    train, taken = run.params.train, run.updates.column("steps") > 0
    before = np.concatenate(([0], np.cumsum(taken)[:-1]))
    return np.minimum(1.0, before / max(1, (train.horizon or train.iterations) - 1))


def learning_rates(run: RunRecord) -> Values:
    """Return the learning rate of each update by the params."""
    ppo = run.params.train.ppo
    falls = RATE_FALLS if ppo.learning_rate_schedule == "linear" else 0.0
    return ppo.learning_rate * (1.0 - falls * schedule_done(run))


def spearman(x: Values, y: Values) -> tuple[float, float]:
    """Return rank correlation and its two-sided p; 0 and 1 where one of the two is constant."""
    if np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return 0.0, 1.0
    statistic, p_value = np.asarray(stats.spearmanr(x, y))
    return float(statistic), float(p_value)


def windows(values: Values, width: int) -> Values:
    """Return all stretches of ``width`` consecutive values, ``[n - width + 1, width]``; of fewer values one stretch."""
    return np.lib.stride_tricks.sliding_window_view(values, min(width, len(values)))


def errors_of_mean(stretches: Values) -> Values:
    """Return the standard error of the mean of each stretch."""
    count = stretches.shape[1]
    return stretches.std(axis=1, ddof=1) / np.sqrt(count) if count > 1 else 0.0 * stretches[:, 0]
