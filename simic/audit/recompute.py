"""Components of the reward from recorded states, and statistics of an evaluation from its values per host, each by its
definition and not by the code that made them.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from simic import rng
from simic.params import Train

Array = NDArray[Any]
Steps = Mapping[str, Array]  # columns of one iteration's steps by name, [T, E] or [T, E, K]

# Stages and ops as the tables have them.
DORMANT, GERMINATED, TRAINING, BLENDING, HOLDING, FOSSILIZED, PRUNED, EMBARGOED, RESETTING = range(9)
LIVE = (GERMINATED, TRAINING, BLENDING, HOLDING, FOSSILIZED)
WAIT, GERMINATE = range(2)
# The potential of a stage, and how much the steps in it add.
PHI = {GERMINATED: 1.0, TRAINING: 2.0, BLENDING: 3.5, HOLDING: 5.5, FOSSILIZED: 7.5}
DWELL_WORTH, DWELL_MOST = 0.3, 2.0

LEVEL = 0.95
FLIPS = 65_536  # of the sampled sign-flip test
WORD = 64  # bits, each a sign
EXACT = 16  # hosts up to which every pattern is tried


def mean_interval(values: Array) -> tuple[float, float, float]:
    """Return the mean and the ends of Student's t interval."""
    mean, error = float(values.mean()), float(stats.sem(values))
    if error == 0.0:  # scipy has no interval without a spread
        return mean, mean, mean
    low, high = stats.t.interval(LEVEL, len(values) - 1, loc=mean, scale=error)
    return mean, float(low), float(high)


def trimmed(values: Array) -> float:
    """Return the mean of the middle half."""
    ordered, cut = np.sort(values), int(0.25 * len(values))
    return float(ordered[cut : len(ordered) - cut].mean())


def sign_flip(difference: Array) -> tuple[float, float]:
    """Return the two-sided p of a sign-flip test, and how far another sample of patterns may be from it."""
    n, reached = len(difference), abs(difference.sum()) - 1e-9 * np.abs(difference).sum()
    if n <= EXACT:
        totals = np.zeros(1)
        for each in difference:
            totals = np.concatenate((totals + each, totals - each))
        return float((np.abs(totals) >= reached).mean()), 1e-9
    p = float((np.abs(_signs(n) @ difference) >= reached).mean())
    return p, 6.0 * float(np.sqrt(2.0 * max(p, 1 / FLIPS) / FLIPS)) + 2.0 / FLIPS


@lru_cache(maxsize=1)  # comparisons of one evaluation are of the same hosts
def _signs(n: int) -> Array:
    """Return sign patterns ``[FLIPS, n]`` other than evaluation's."""
    words = rng.bits(rng.key(n, rng.Purpose.BOOTSTRAP, FLIPS), (FLIPS, -(-n // WORD))).numpy()
    signs = np.unpackbits(words.view(np.uint8), axis=1)[:, :n].astype(np.float64)
    signs *= -2.0  # in place, since they are many
    signs += 1.0
    return signs


def improves(difference: Array) -> float:
    """Return the share of hosts on which the first is better, ties counting half."""
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def by_task(values: Array, rows: Sequence[int], tasks: Sequence[int]) -> Array:
    """Return means over the hosts of each task, ``[R, …]`` → ``[T, …]``; with one task its hosts."""
    each = np.asarray(rows)
    if len(tasks) == 1:
        return values[each == tasks[0]]
    return np.stack([values[each == task].mean(axis=0) for task in tasks])


def of_best(choosing: Array, scored: Array) -> Array:
    """Return the score ``[T]`` of the schedule that is best on the hosts that choose; ties are averaged."""
    result = np.empty(len(scored))
    for task, (chosen, reached) in enumerate(zip(choosing, scored, strict=True)):
        result[task] = reached[chosen == chosen.max()].mean()
    return result


def best_of(val: Array, test: Array) -> Array:
    """Return expected test scores ``[K, R]`` of the best by validation of 1, 2, … random different schedules."""
    n = val.shape[1]
    # That all k that are drawn are among the m worst.
    chance = np.array([[comb(m, k) / comb(n, k) for m in range(n + 1)] for k in range(1, n + 1)])
    result = np.zeros((n, len(val)))
    for row, (chosen, reached) in enumerate(zip(val, test, strict=True)):
        below = 0
        for level in np.unique(chosen):
            equal = chosen == level
            upto = below + int(equal.sum())
            result[:, row] += (chance[:, upto] - chance[:, below]) * reached[equal].mean()
            below = upto
    return result


def reward_components(steps: Steps, train: Train, host_params: int) -> dict[str, Array]:
    """Return the components ``[T, E]`` that follow from the record alone; NaN where they do not."""
    gamma, reward, panicked = train.ppo.gamma, train.reward, steps["panicked"]
    ended = panicked.copy()  # a rollback is a terminal too
    ended[-1] |= train.episode_end == "terminate"
    worth = _potential(steps)
    shaping = reward.pbrs_weight * (gamma * np.where(ended, 0.0, worth) - _earlier(worth, 0.0))
    # What the host scored before its first step is not recorded.
    score = steps["committed_accuracy"] - train.price * (steps["committed_params"] - host_params) / host_params
    terminal = np.zeros(score.shape)
    terminal[-1] = np.where(panicked[-1], 0.0, reward.shaped.terminal_weight * steps["committed_accuracy"][-1])
    return {
        "shaping": shaping,
        "score_change": reward.score.weight * (gamma * score - _earlier(score, np.nan)),
        "intervention": -reward.intervention_cost * (steps["effective_op"] != WAIT),
        "death": reward.death_penalty * panicked,
        "terminal": terminal,
    }


def _potential(steps: Steps) -> Array:
    """Return Φ summed over slots after each step, ``[T, E]``."""
    stage, slots = steps["stage"], np.arange(steps["stage"].shape[2])
    germinated = (steps["effective_op"] == GERMINATE)[..., None] & (slots == steps["slot"][..., None])
    dwelt = np.ones(stage.shape, dtype=np.int64)  # steps in the stage, the present one included
    for t in range(1, len(stage)):
        dwelt[t] = np.where((stage[t] == stage[t - 1]) & ~germinated[t], dwelt[t - 1] + 1, 1)
    potential = np.array([PHI.get(each, 0.0) for each in range(RESETTING + 1)])[stage]
    return (potential + np.where(np.isin(stage, LIVE[:-1]), np.minimum(DWELL_WORTH * dwelt, DWELL_MOST), 0.0)).sum(
        axis=2
    )


def _earlier(values: Array, first: float) -> Array:
    """Return the value before each step; ``first`` before the first one."""
    return np.concatenate((np.full_like(values[:1], first), values[:-1]))
