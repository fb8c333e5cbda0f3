"""Statistics against textbook numbers, enumeration and scipy's own implementations."""

import itertools

import numpy as np
import pytest
from scipy import stats

from simic.errors import SimicError
from simic.evaluation import statistics

DIFFERENCES = np.array([1.2, -0.4, 0.9, 2.1, 0.3, -0.1, 1.7, 0.6])


def skewed(n):
    """Deterministic values with a long right tail."""
    return np.exp(stats.norm.ppf((np.arange(n) + 0.5) / n) * 0.6) * 10


def test_mean_interval_is_students_t():
    result = statistics.mean_interval(DIFFERENCES)
    test = stats.ttest_1samp(DIFFERENCES, 0.0).confidence_interval(0.95)
    assert (result.estimate, result.low, result.high) == pytest.approx((DIFFERENCES.mean(), test.low, test.high))


def test_sign_flip_p_counts_every_sign_pattern():
    observed = abs(DIFFERENCES.sum())
    hits = sum(
        abs(np.dot(signs, DIFFERENCES)) >= observed - 1e-12
        for signs in itertools.product((1, -1), repeat=len(DIFFERENCES))
    )
    assert statistics.sign_flip_p(DIFFERENCES, 1) == hits / 2 ** len(DIFFERENCES)


@pytest.mark.parametrize(
    ("values", "p"),
    [
        (np.arange(1.0, 11.0), 2 / 2**10),  # all of one sign: that pattern and its mirror image
        (np.zeros(5), 1.0),
        (np.zeros(30), 1.0),
        (np.full(40, 5.0), 1 / (1 + 2**16)),  # sampled, and never zero
    ],
)
def test_sign_flip_p_by_hand(values, p):
    assert statistics.sign_flip_p(values, 1) == pytest.approx(p, rel=1e-12)


def test_sampled_sign_flips_agree_with_scipys_permutation_test():
    values = np.tile(DIFFERENCES, 3) - 0.5
    sampled = statistics.sign_flip_p(values, 7)
    oracle = stats.permutation_test(
        (values,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", n_resamples=60_000, rng=3,
        vectorized=True,
    )  # fmt: skip
    assert sampled == pytest.approx(oracle.pvalue, abs=0.006)
    assert sampled == statistics.sign_flip_p(values, 7)
    assert sampled != statistics.sign_flip_p(values, 8)


def test_probability_of_improvement_counts_ties_half():
    assert statistics.probability_of_improvement(np.array([1.0, 0.0, -1.0, 2.0])) == 0.625


def test_minimum_detectable_effect_matches_power_tables():
    # Cohen's d of a one-sample t test, two-sided 5 %, power 80 %: 0.6604 at n = 20, 1.0 needs n = 10 (G*Power: 0.9957).
    unit = np.tile([1.0, -1.0], 10)
    unit = unit / unit.std(ddof=1)
    assert statistics.minimum_detectable(unit) == pytest.approx(0.6604, abs=5e-4)
    ten = unit[:10] / unit[:10].std(ddof=1)
    assert statistics.minimum_detectable(ten) == pytest.approx(0.9957, abs=1e-3)


def test_interquartile_interval_agrees_with_scipys_bca():
    values = skewed(24)
    ours = statistics.interquartile_interval(values, 1)
    oracle = stats.bootstrap(
        (values,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), method="BCa", n_resamples=40_000, rng=1,
        vectorized=True,
    ).confidence_interval  # fmt: skip
    assert ours.estimate == pytest.approx(stats.trim_mean(values, 0.25))
    assert (ours.low, ours.high) == pytest.approx((oracle.low, oracle.high), rel=0.02)
    assert ours == statistics.interquartile_interval(values, 1)


@pytest.mark.parametrize("values", [[1.0], [], [1.0, float("nan")], [1.0, float("inf")]])
def test_too_few_or_missing_values_are_refused(values):
    with pytest.raises(SimicError):
        statistics.mean_interval(values)


def test_interquartile_interval_needs_ten_seeds_and_of_equal_values_is_a_point():
    assert statistics.interquartile_interval(skewed(9), 1) is None
    point = statistics.interquartile_interval([3.0] * 12, 1)
    assert (point.estimate, point.low, point.high) == (3.0, 3.0, 3.0)


def test_the_interval_of_a_share_is_the_one_of_wilson():
    """Every p for which the share is no further from p than 1.96 standard errors of p, by a search over p."""
    grid = np.linspace(0, 1, 200_001)
    for right, n in ((0, 20), (13, 20), (20, 20)):
        allowed = grid[np.abs(right / n - grid) <= 1.959964 * np.sqrt(grid * (1 - grid) / n) + 1e-12]
        share = statistics.share_interval(right / n, n)
        assert (share.estimate, share.low, share.high) == pytest.approx(
            (right / n, allowed.min(), allowed.max()), abs=1e-5
        )
