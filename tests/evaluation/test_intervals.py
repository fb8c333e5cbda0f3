"""Statistics against textbook numbers, enumeration, scipy's own implementations and truths that are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simic.errors import SimicError
from simic.evaluation import intervals
from simic.evaluation.intervals import paired_difference, pareto_front

DIFFERENCES = np.array([1.2, -0.4, 0.9, 2.1, 0.3, -0.1, 1.7, 0.6])


@pytest.mark.parametrize("values", [[1.0], [], [1.0, float("nan")], [1.0, float("inf")]])
def test_too_few_or_missing_values_are_refused(values):
    with pytest.raises(SimicError):
        intervals.mean_interval(values)


@pytest.mark.parametrize(
    ("values", "tolerance"),
    [(DIFFERENCES, 1e-12), (np.tile(DIFFERENCES, 3) - 0.5, 0.006)],
    ids=["every pattern", "sampled"],
)
def test_sign_flips_agree_with_scipys_permutation_test(values, tolerance):
    oracle = stats.permutation_test(
        (values,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", n_resamples=60_000, rng=3,
        vectorized=True,
    )  # fmt: skip
    assert intervals.sign_flip_p(values, 7) == pytest.approx(oracle.pvalue, abs=tolerance)


@pytest.mark.parametrize(
    ("values", "p"),
    [
        (np.arange(1.0, 11.0), 2 / 2**10),  # all of one sign: that pattern and its mirror image
        (np.zeros(30), 1.0),
        (np.full(40, 5.0), 1 / (1 + 2**16)),  # sampled, and never zero
    ],
)
def test_sign_flip_p_by_hand(values, p):
    assert intervals.sign_flip_p(values, 1) == pytest.approx(p, rel=1e-12)


def test_probability_of_improvement_counts_ties_half():
    assert intervals.probability_of_improvement(np.array([1.0, 0.0, -1.0, 2.0])) == 0.625


def test_minimum_detectable_effect_matches_power_tables():
    # Cohen's d of a one-sample t test, two-sided 5 %, power 80 %: 0.6604 at n = 20 (G*Power).
    unit = np.tile([1.0, -1.0], 10)
    assert intervals.minimum_detectable(unit / unit.std(ddof=1)) == pytest.approx(0.6604, abs=5e-4)


def test_interquartile_interval_agrees_with_scipys_bca():
    values = np.exp(stats.norm.ppf((np.arange(24) + 0.5) / 24) * 0.6) * 10  # a long right tail
    interval = intervals.interquartile_interval(values, 1)
    oracle = stats.bootstrap(
        (values,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), method="BCa", n_resamples=40_000, rng=1,
        vectorized=True,
    ).confidence_interval  # fmt: skip
    assert interval.estimate == pytest.approx(stats.trim_mean(values, 0.25))
    assert (interval.low, interval.high) == pytest.approx((oracle.low, oracle.high), rel=0.02)
    assert intervals.interquartile_interval(values[:9], 1) is None
    assert vars(intervals.interquartile_interval([3.0] * 12, 1)) == {
        "estimate": 3.0,
        "low": 3.0,
        "high": 3.0,
    }


def test_the_interval_of_a_share_is_the_one_of_wilson():
    """Its ends are as far from 13 / 20 as 1.96 standard errors of the share that they would be."""
    interval = intervals.share_interval(13 / 20, 20)
    for end in (interval.low, interval.high):
        assert abs(13 / 20 - end) == pytest.approx(
            1.959964 * np.sqrt(end * (1 - end) / 20), abs=1e-6
        )
    assert interval.estimate == 13 / 20 and interval.low < 13 / 20 < interval.high


POINT = st.tuples(st.integers(0, 4), st.integers(0, 4))  # cost, gain


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(POINT, max_size=9))
def test_the_front_is_what_no_other_point_weakly_dominates_and_of_equals_the_first(values):
    points = {f"p{i}": value for i, value in enumerate(values)}
    beaten = {
        point
        for point in set(values)
        for cost, gain in set(values) - {point}
        if cost <= point[0] and gain >= point[1]
    }
    assert pareto_front(points) == [
        f"p{values.index(value)}" for value in sorted(set(values) - beaten)
    ]


def test_the_interval_of_a_mean_is_students_t():
    expected = stats.t.interval(0.95, 7, DIFFERENCES.mean(), stats.sem(DIFFERENCES))
    paired = paired_difference(DIFFERENCES, np.zeros(8))
    for interval in (intervals.mean_interval(DIFFERENCES), paired):
        assert (interval.low, interval.high) == pytest.approx(expected)


def test_the_difference_over_training_seeds_is_the_two_way_table_by_hand():
    # Rows are training seeds: means 2 and 6; columns 3, 5; residuals ± 1 by sign of the interaction.
    values = np.array([[2.0, 2.0], [4.0, 8.0]])
    # Mean squares: seeds 2·(4 + 4) = 16, instances 2·(1 + 1) = 4, residual 4·1 = 4, each with one degree of freedom.
    square = 16 + 4 - 4
    freedom = square**2 / (16**2 + 4**2 + 4**2)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(square / 4)
    interval = paired_difference(values, np.zeros(2))
    assert (interval.estimate, interval.low, interval.high) == pytest.approx(
        (4.0, 4.0 - half, 4.0 + half)
    )
