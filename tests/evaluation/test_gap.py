"""Differences and shares over instances and training seeds, against textbooks and truths that are known."""

import numpy as np
import pytest
from scipy import stats

from simic.evaluation import gap
from simic.evaluation.statistics import mean_interval
from tests.evaluation import intervals

ZERO = np.zeros(40)


def within(rate, trials, expected):
    """Whether a rate of hits lies in the binomial 95 % interval of the expected one."""
    low, high = stats.binom.interval(0.95, trials, expected)
    return low <= round(rate * trials) <= high


def scores(instances=40, seeds=1, rng_seed=1):
    generator = np.random.default_rng(rng_seed)
    oracle = intervals.headroom(generator, instances)
    return 0.5 * oracle + generator.normal(0, 4, (seeds, instances)), oracle


def test_the_difference_of_one_training_seed_is_students_t_over_instances():
    policy, oracle = scores()
    found = gap.paired_difference(policy, oracle)
    assert vars(found) == pytest.approx(vars(mean_interval(policy[0] - oracle)))
    assert gap.paired_difference(policy[0], oracle) == found


def test_the_difference_over_training_seeds_is_the_two_way_table_by_hand():
    # Rows are training seeds: means 2 and 6; columns 3, 5; residuals ± 1 by sign of the interaction.
    values = np.array([[2.0, 2.0], [4.0, 8.0]])
    # Mean squares: seeds 2·(4 + 4) = 16, instances 2·(1 + 1) = 4, residual 4·1 = 4, each with one degree of freedom.
    square = 16 + 4 - 4
    freedom = square**2 / (16**2 + 4**2 + 4**2)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(square / 4)
    found = gap.paired_difference(values, np.zeros(2))
    assert (found.estimate, found.low, found.high) == pytest.approx((4.0, 4.0 - half, 4.0 + half))


def test_equal_training_seeds_count_as_one():
    policy, oracle = scores()
    there = gap.gap_closed(policy, ZERO, oracle).share
    again = gap.gap_closed(np.repeat(policy, 3, axis=0), ZERO, oracle).share
    assert vars(again) == pytest.approx(vars(there))
    one, three = (gap.paired_difference(np.repeat(policy, n, axis=0), oracle) for n in (1, 3))
    assert vars(three) == pytest.approx(vars(one))


def test_the_share_is_fiellers():
    policy, oracle = scores()
    found = gap.gap_closed(policy + 60, ZERO + 60, oracle + 60).share
    # The roots of (x - r y)² = t² (s_xx - 2 r s_xy + r² s_yy) / n, Fieller 1954.
    x, y, t = policy.mean(), oracle.mean(), stats.t.ppf(0.975, 39)
    (s_xx, s_xy), (_, s_yy) = t**2 * np.cov(policy[0], oracle) / 40
    a, b, c = y**2 - s_yy, x * y - s_xy, x**2 - s_xx
    root = np.sqrt(b**2 - a * c)
    assert (found.estimate, found.low, found.high) == pytest.approx((x / y, (b - root) / a, (b + root) / a))


@pytest.mark.parametrize("seeds", [1, 4])
def test_a_share_is_above_0_where_the_difference_is(seeds):
    for rng_seed in range(30):
        policy, oracle = scores(seeds=seeds, rng_seed=rng_seed)
        policy = policy - 4.5
        share, difference = gap.gap_closed(policy, ZERO, oracle).share, gap.paired_difference(policy, ZERO)
        assert (share.low > 0) == (difference.low > 0)
        assert (share.high < 0) == (difference.high < 0)


def test_the_oracle_closes_all_of_the_gap_and_the_common_schedule_nothing():
    _, oracle = scores()
    for policy, share in ((oracle, 1.0), (ZERO, 0.0), (0.3 * oracle, 0.3)):
        found = gap.gap_closed(policy, ZERO, oracle).share
        assert (found.estimate, found.low, found.high) == pytest.approx((share,) * 3)


def test_without_a_gap_there_is_no_share_but_a_reason():
    generator = np.random.default_rng(2)
    common, oracle = generator.normal(70, 5, (2, 40))
    found = gap.gap_closed(oracle, common, oracle)
    assert found.share is None and "may be 0" in found.undefined
    assert found.gap == gap.paired_difference(oracle, common)
    negative = gap.gap_closed(oracle, oracle + 5, oracle)
    assert negative.share is None and "-5.00 [-5.00, -5.00]" in negative.undefined
    assert gap.gap_closed(oracle, common, common + 5).undefined == ""


def test_a_gap_just_above_0_leaves_a_share_with_ends():
    whole = np.array([1.0, -1.0] * 20)
    whole = whole - whole.mean() + 1.0001 * gap.paired_difference(whole, ZERO).high
    found = gap.gap_closed(np.linspace(-1, 2, 40), ZERO, whole)
    assert found.gap.low > 0 and found.share.low < found.share.estimate < found.share.high


def test_a_true_null_is_called_wrong_as_often_as_stated():
    assert within(intervals.wrong(60, 600), 600, 0.05)


def test_training_seeds_that_differ_are_no_evidence():
    # Without the variance of seeds 14 % of these nulls would be called real.
    assert intervals.wrong_over_seeds(seeds=3, instances=40, nulls=600, spread=4.0) <= 0.07
