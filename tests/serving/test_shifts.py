"""The tests of columns, against scipy's own and against chance."""

import numpy as np
import pytest
from scipy import stats

from simic.serving import shifts

DRAWS = np.random.default_rng(1)
DECILES = stats.norm.ppf(np.linspace(0.0001, 0.9999, 11))


def test_all_looks_together_spend_alpha_and_no_more() -> None:
    spent = sum(3 * shifts.level_of(look, tests=3) for look in range(1, 20_000))
    assert 0.0499 < spent < shifts.ALPHA
    assert shifts.level_of(2, 1) == pytest.approx(shifts.level_of(1, 1) / 4)


@pytest.mark.parametrize("kind", ["numbers", "levels"])
def test_under_the_null_a_level_is_reached_no_more_often_than_it_says(kind: str) -> None:
    draws = np.random.default_rng(7)
    hits = 0
    for _ in range(600):
        if kind == "numbers":
            pair = [draws.normal(size=size) for size in (400, 200)]
            for values in pair:
                values[draws.random(len(values)) < 0.05] = np.nan
            column = shifts.of_numbers("x", DECILES, *pair, 0.05)
        else:
            pair = [draws.geometric(0.3, size).astype(float) for size in (400, 200)]
            column = shifts.of_levels("x", *pair, 0.05)
        hits += column.p_value <= 0.05
    # 30 are expected; 47 is three deviations more.
    assert 5 < hits < 47


def test_numbers_are_compared_by_kolmogorov_and_smirnov() -> None:
    reference = DRAWS.normal(size=1000)
    window = DRAWS.normal(0.4, size=300)
    column = shifts.of_numbers("x", DECILES, reference, window, 0.01)
    assert column.p_value == stats.ks_2samp(reference, window, method="asymp").pvalue
    assert column.is_finding and column.missing_share == 0.0
    # By hand: ten bins and one of missing values, half a row added to each.
    shares = []
    for values in (reference, window):
        counts = np.bincount(np.searchsorted(DECILES[1:-1], values), minlength=10) + 0.5
        shares.append(counts / counts.sum())
    expected = ((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum()
    assert column.psi == pytest.approx(expected)


def test_values_that_go_missing_are_a_shift() -> None:
    values = DRAWS.normal(size=1000)
    gaps = np.where(np.arange(1000) % 5 == 0, np.nan, values)
    column = shifts.of_numbers("x", DECILES, values, gaps, 0.01)
    assert column.is_finding and column.missing_share == 0.2
    assert shifts.of_numbers("x", DECILES, values, np.full(300, np.nan), 0.01).is_finding
    assert (
        shifts.of_numbers("x", DECILES, np.full(300, np.nan), np.full(300, np.nan), 0.01).p_value
        == 1.0
    )


def test_levels_are_compared_by_the_g_test_with_rare_ones_joined() -> None:
    table = np.array([[500.0, 300.0, 4.0, 3.0, 0.0], [150.0, 130.0, 1.0, 2.0, 9.0]])
    joined = np.array([[500, 300, 7], [150, 130, 12]])
    expected = stats.chi2_contingency(joined, correction=False, lambda_="log-likelihood").pvalue
    assert shifts.table_p(table) == pytest.approx(expected)
    codes = [np.repeat(np.arange(5.0), counts.astype(int)) for counts in table]
    assert shifts.of_levels("x", *codes, 0.01).p_value == pytest.approx(expected)
    assert shifts.table_p(np.array([[5.0, 0.0], [3.0, 0.0]])) == 1.0


def test_of_many_rows_a_shift_that_is_certain_but_tiny_is_no_finding() -> None:
    reference = DRAWS.normal(size=200_000)
    column = shifts.of_numbers("x", DECILES, reference, reference + 0.03, 0.01)
    assert column.p_value < 1e-6 and column.psi < 0.01 and not column.is_finding
