"""Test whether rows come from the distribution of a reference, column by column, and how far they are from it.

A finding needs both: a p-value below a level that is corrected for all tests of all looks, and an effect, because of
many rows the smallest shift is certain. Rows are taken to be independent of each other.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # loads stats when it is first used
from numpy.typing import NDArray

from simic.data.own.contract import decile_bins
from simic.serving import drift
from simic.serving.journal import Entry

# Chance of one false finding or more in all looks at a model together.
ALPHA = 0.05
# Population stability index from which a shift matters; the usual reading is 0.1 moderate, 0.25 large.
LEAST_PSI = 0.1
# Rows that both samples together would have of a level in the smaller one; rarer levels are joined.
LEAST_EXPECTED = 5.0
# Added to every count, so that an empty bin has a logarithm.
HALF_ROW = 0.5

Codes = NDArray[np.float64]


class Shift(Entry):
    """How far a column, or the classes predicted, are from the reference, and how likely that is by chance."""

    name: str
    psi: float
    p_value: float
    # Below which a p-value counts in this look.
    level: float
    missing_share: float = 0.0

    @property
    def is_finding(self) -> bool:
        """Tell whether it is neither chance nor too small to matter."""
        return self.p_value <= self.level and self.psi >= LEAST_PSI


def level_of(look: int, tests: int) -> float:
    """Spend the chance of a false finding over looks without end: 6 α / (π² k²) in look ``k``, shared by its tests.

    The sum over all looks is α (Bonferroni over Σ 1/k² = π²/6), whatever depends on what.
    """
    return 6 * ALPHA / (math.pi * look) ** 2 / tests


def of_numbers(
    name: str, deciles: Sequence[float], reference: Codes, window: Codes, level: float
) -> Shift:
    """Compare numbers, NaN where missing, by Kolmogorov and Smirnov; that values are missing is tested beside.

    Args:
        name: Of the column.
        deciles: Of the training rows, from lowest to highest.
        reference: Its values in training, ``[R]``.
        window: Those of requests, ``[W]``.
        level: Of a finding.
    """
    present = reference[~np.isnan(reference)]
    arrived = window[~np.isnan(window)]
    p_values = [table_p(table_of(np.isnan(reference), np.isnan(window)))]
    if len(present) and len(arrived):
        p_values.append(float(scipy.stats.ks_2samp(present, arrived, method="asymp").pvalue))
    # Where no value is missing, that is no test.
    tests = 1 if len(present) == len(reference) and len(arrived) == len(window) else len(p_values)

    # Tenths of the training rows, and one more bin for missing values.
    def bins(values: Codes) -> NDArray[np.int64]:
        return np.where(np.isnan(values), len(deciles), decile_bins(values, deciles))

    return _shift(
        name,
        table_of(bins(reference), bins(window)),
        min(1.0, tests * min(p_values)),
        level,
        float(np.isnan(window).mean()),
    )


def of_levels(name: str, reference: Codes, window: Codes, level: float) -> Shift:
    """Compare places of levels, NaN where missing, by a G-test (arguments as of ``of_numbers``)."""
    # A missing value is one more level.
    past = float(np.nanmax([*reference, *window, 0.0])) + 1
    table = table_of(np.nan_to_num(reference, nan=past), np.nan_to_num(window, nan=past))
    return of_table(name, table, level, float(np.isnan(window).mean()))


def of_table(name: str, table: Codes, level: float, missing_share: float = 0.0) -> Shift:
    """Compare counts ``[2, K]``, of the reference and of now, by a G-test."""
    return _shift(name, table, table_p(table), level, missing_share)


def table_of(reference: NDArray[np.generic], window: NDArray[np.generic]) -> Codes:
    """Count places 0…K-1 in two samples: ``[2, K]``."""
    places = [values.astype(np.int64) for values in (reference, window)]
    size = max(int(values.max()) for values in places) + 1
    return np.stack([np.bincount(values, minlength=size) for values in places]).astype(np.float64)


def table_p(table: Codes) -> float:
    """Compute the p-value that counts ``[2, K]`` of two samples come from one distribution, by the G-test.

    In the far tail, where the levels of late looks are, Pearson's statistic is much too certain, G is not. Levels too
    rare for its χ² distribution are joined, by the counts of both samples, which under the null say nothing of either.
    """
    smaller = table.sum(1).min() / table.sum()
    is_rare = table.sum(0) * smaller < LEAST_EXPECTED
    joined = np.column_stack([table[:, ~is_rare], table[:, is_rare].sum(1)])
    joined = joined[:, joined.sum(0) > 0]
    if joined.shape[1] < 2:
        return 1.0
    answer: Any = scipy.stats.chi2_contingency(joined, correction=False, lambda_="log-likelihood")
    return float(answer.pvalue)


def _shift(name: str, table: Codes, p_value: float, level: float, missing_share: float) -> Shift:
    smooth = table + HALF_ROW
    psi = drift.psi(*(smooth / smooth.sum(1, keepdims=True)))
    return Shift(name=name, psi=psi, p_value=p_value, level=level, missing_share=missing_share)
