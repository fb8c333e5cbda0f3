"""Compute intervals, p-values and effect sizes of paired evaluation seeds; every random draw is a hash (simic.rng).

Means are reported with Student's t, not with a percentile bootstrap: at n = 5 the latter calls 16 % of null effects
real. Bootstrap intervals (BCa, Efron 1987) are given for the interquartile mean alone, and only from n = 10.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import scipy  # loads stats when it is first used: a second that processes which only play hosts do not need
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from simic import rng
from simic.errors import SimicError

CONFIDENCE = 0.95
POWER = 0.8
# Up to here all 2^n sign patterns are enumerated.
EXACT_SIGN_FLIPS = 16
SAMPLED_SIGN_FLIPS = 2**EXACT_SIGN_FLIPS
# Patterns that are floats at a time.
FLIPS_AT_ONCE = 4096
BOOTSTRAP_RESAMPLES = 5_000
MIN_BOOTSTRAP_SEEDS = 10

Values = NDArray[np.float64]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Interval:
    """A point estimate with its 95 % interval, in the unit of the values."""

    estimate: float
    low: float
    high: float

    def within(self, low: float, high: float) -> "Interval":
        """Cut the interval off where the quantity cannot lie: a t interval of a few values knows no such bound."""
        return Interval(self.estimate, max(self.low, low), min(self.high, high))


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class PairedComparison:
    """Policy ``first`` less ``second`` over the same seeds or tasks, in the unit of the values."""

    first: str
    second: str
    difference: Interval
    # Two-sided sign-flip permutation test of "no difference".
    p_value: float
    probability_of_improvement: float
    # Difference that so many pairs find with 80 % power at 5 % level.
    minimum_detectable: float
    pairs: int


def _vector(values: ArrayLike, name: str) -> Values:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size < 2:
        raise SimicError(
            f"{name} has shape {vector.shape}: an interval needs one value each of at least 2 seeds"
        )
    if not np.isfinite(vector).all():
        raise SimicError(
            f"{name} has {int((~np.isfinite(vector)).sum())} non-finite values: every seed must count"
        )
    return vector


def mean_interval(values: ArrayLike) -> Interval:
    """Compute the mean and its Student t interval; SimicError below 2 values or on a non-finite one."""
    vector = _vector(values, "values")
    mean = float(vector.mean())
    half = float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, vector.size - 1)) * _standard_error(vector)
    return Interval(mean, mean - half, mean + half)


def share_interval(share: float, n: int) -> Interval:
    """Compute the interval of a share of n independent samples (Wilson 1927)."""
    ends = scipy.stats.binomtest(round(share * n), n).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(share, float(ends.low), float(ends.high))


def _standard_error(vector: Values) -> float:
    return float(vector.std(ddof=1) / np.sqrt(vector.size))


def compare(
    first: str, second: str, values: Mapping[str, ArrayLike], rng_seed: int
) -> PairedComparison:
    """Compare two policies, seed by seed; both must have met the same hosts and data in the same order.

    Args:
        first: name of one policy.
        second: name of the other.
        values: by name of the policy, ``[seeds]``.
        rng_seed: of the permutation test.
    """
    difference = _vector(values[first], first) - _vector(values[second], second)
    return PairedComparison(
        first=first,
        second=second,
        difference=mean_interval(difference),
        p_value=sign_flip_p(difference, rng_seed),
        probability_of_improvement=probability_of_improvement(difference),
        minimum_detectable=minimum_detectable(difference),
        pairs=difference.size,
    )


def compare_with_all(
    first: str, values: Mapping[str, ArrayLike], rng_seed: int
) -> tuple[PairedComparison, ...]:
    """Compare a policy with all others; nothing where it has no values.

    Args:
        first: its name.
        values: by name of the policy, ``[seeds]``.
        rng_seed: of the permutation test.
    """
    if first not in values:
        return ()
    return tuple(compare(first, name, values, rng_seed) for name in values if name != first)


def sign_flip_p(difference: Values, rng_seed: int) -> float:
    """Compute the two-sided p of the mean if signs are arbitrary: exact up to 16 seeds, else of 65,536 hashed patterns.

    A sampled pattern set counts the observed one too, (1 + hits) / (1 + n), so that p is never 0
    (Phipson and Smyth 2010, arXiv 1603.05766).
    """
    n = difference.size
    if n <= EXACT_SIGN_FLIPS:
        patterns = np.arange(2**n)[:, None] >> np.arange(n) & 1
        return float(_extreme(difference, patterns == 1).mean())
    hits = _extreme(difference, _sampled_flips(rng_seed, n)).sum()
    return float((1 + hits) / (1 + SAMPLED_SIGN_FLIPS))


# A policy is compared with several others by the same patterns.
@lru_cache(maxsize=1)
def _sampled_flips(rng_seed: int, n: int) -> NDArray[np.bool_]:
    # A sign is one bit of a hash.
    stream = rng.key(rng_seed, rng.Purpose.BOOTSTRAP, n, 0)
    words = rng.bits(stream, (SAMPLED_SIGN_FLIPS, -(-n // 64))).numpy()
    return np.unpackbits(words.view(np.uint8), axis=1)[:, :n].astype(np.bool_)


def _extreme(difference: Values, flips: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the patterns of flipped signs that give a mean at least as far from 0; the slack covers the order of
    summation.
    """
    total = float(difference.sum())
    flipped = np.concatenate(
        [flips[k : k + FLIPS_AT_ONCE] @ difference for k in range(0, len(flips), FLIPS_AT_ONCE)]
    )
    return np.abs(total - 2.0 * flipped) >= abs(total) - 1e-9 * float(np.abs(difference).sum())


def probability_of_improvement(difference: Values) -> float:
    """Compute the share of seeds on which the first is better; ties count half (paired, Agarwal et al. 2021, §4.3)."""
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


def minimum_detectable(difference: Values) -> float:
    """Compute the true mean that a two-sided t test at 5 % finds with 80 % power, given this n and spread."""
    freedom = difference.size - 1
    critical = float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))

    def lacking_power(shift: float) -> float:
        return float(scipy.stats.nct.sf(critical, freedom, shift)) - POWER

    # Noncentrality; the far tail's rejections are < 1e-4 here and left out. Power grows with the shift, so one root.
    shift = float(
        scipy.optimize.root_scalar(
            lacking_power, bracket=(0.0, 4.0 * critical + 10.0), xtol=1e-10
        ).root
    )
    return shift * _standard_error(difference)


def interquartile_interval(values: ArrayLike, rng_seed: int) -> Interval | None:
    """Compute the mean of the middle half with its BCa bootstrap interval; None below 10 seeds, where the bootstrap is
    not to be trusted.
    """
    vector = _vector(values, "values")
    if vector.size < MIN_BOOTSTRAP_SEEDS:
        return None
    estimate = float(scipy.stats.trim_mean(vector, 0.25))
    # No spread: every resample is the estimate, and BCa would divide by it.
    if np.ptp(vector) == 0.0:
        return Interval(estimate, estimate, estimate)
    # scipy.stats.bootstrap draws from a generator; here every draw is a hash.
    uniform = rng.uniform(
        rng.key(rng_seed, rng.Purpose.BOOTSTRAP, vector.size, 1), (BOOTSTRAP_RESAMPLES, vector.size)
    )
    drawn = np.floor(uniform.numpy().astype(np.float64) * vector.size).astype(np.int64)
    resampled = scipy.stats.trim_mean(vector[drawn], 0.25, axis=1)
    low, high = np.quantile(resampled, _bca_levels(vector, resampled, estimate))
    return Interval(estimate, float(low), float(high))


def _bca_levels(vector: Values, resampled: Values, estimate: float) -> Values:
    """Correct the quantile levels for bias z0 and acceleration a (Efron 1987, eq. 6.8)."""
    # Ties count half: the estimate is a mean of few values and resamples hit it exactly.
    below = float(np.mean((resampled < estimate) + 0.5 * (resampled == estimate)))
    bias = scipy.stats.norm.ppf(
        np.clip(below, 1 / BOOTSTRAP_RESAMPLES, 1 - 1 / BOOTSTRAP_RESAMPLES)
    )
    # In row i all values but the i-th.
    n = vector.size
    rest = np.broadcast_to(vector, (n, n))[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    jackknife = scipy.stats.trim_mean(rest, 0.25, axis=1)
    centred = jackknife.mean() - jackknife
    spread = float((centred**2).sum()) ** 1.5
    acceleration = float((centred**3).sum()) / (6.0 * spread) if spread > 0 else 0.0
    # The levels of a normal interval, shifted and stretched.
    z = bias + scipy.stats.norm.ppf([0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return scipy.stats.norm.cdf(bias + z / (1.0 - acceleration * z))


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Select the points (cost, gain) that no other weakly dominates, by rising cost; of equals the first name."""
    front: list[str] = []
    best = -np.inf
    for name, (_, gain) in sorted(
        points.items(), key=lambda point: (point[1][0], -point[1][1], point[0])
    ):
        if gain > best:
            front.append(name)
            best = gain
    return front


# --- over training seeds and instances of a suite ---
#
# Scores are ``[training seeds, instances]`` or, of one training seed or of what is not trained, ``[instances]``. Every
# training seed meets the same instances. Intervals are Student's t of a mean: on scores spread as those of tasks are
# its rate of false positives is closer to 5 % than that of percentile, basic and BCa bootstraps
# (docs/history/experiments.md).


def paired_difference(first: ArrayLike, second: ArrayLike) -> Interval:
    """Compute the mean of first − second over instances and training seeds, in the unit of the scores."""
    difference = np.atleast_2d(
        np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    )
    mean = float(difference.mean())
    half = _half_width(difference)
    return Interval(mean, mean - half, mean + half)


def rows_by_task(tasks: Mapping[int, int]) -> list[list[int]]:
    """List the rows of every task, given the task of every row; of a single task, as of a data set, one row each."""
    rows = dict[int, list[int]]()
    for row, task in tasks.items():
        rows.setdefault(task, []).append(row)
    return list(rows.values()) if len(rows) > 1 else [[row] for row in tasks]


def _half_width(values: Values) -> float:
    """Compute half the 95 % interval of the mean of ``values [training seeds, instances]``.

    Seeds and instances are crossed and both are drawn from more, so the variance of the mean is that of the two-way
    random-effects table, with Satterthwaite's degrees of freedom (Searle, Casella, McCulloch 1992, ch. 4).
    """
    # One training seed: a plain t interval over instances.
    seeds, instances = values.shape
    of_instance = seeds * float(values.mean(axis=0).var(ddof=1))  # mean squares
    square = of_instance
    freedom = float(instances - 1)
    # Several: no less than either part alone, since the residual may by chance exceed one of them.
    if seeds > 1:
        of_seed = instances * float(values.mean(axis=1).var(ddof=1))
        rest = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
        residual = float((rest**2).sum()) / ((seeds - 1) * (instances - 1))
        square = max(of_seed + of_instance - residual, of_seed, of_instance)
        parts = of_seed**2 / (seeds - 1) + of_instance**2 / (instances - 1)
        parts += residual**2 / ((seeds - 1) * (instances - 1))
        freedom = square**2 / parts if parts > 0 else freedom
    return float(scipy.special.stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * float(
        np.sqrt(square / values.size)
    )
