"""Compare the newest rows that a network was sent with what it learned from."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from simic.data.own.contract import Contract, ContractColumn, decile_bins

WINDOW_ROWS = 10_000
# With fewer the index is large by chance.
LEAST_ROWS = 200
# In place of an empty bin, whose logarithm is infinite.
LEAST_SHARE = 1e-4


def psi(expected: np.ndarray, observed: np.ndarray) -> float:
    """Compute the population stability index of shares in bins (Siddiqi 2006, "Credit Risk Scorecards", ch. 9)."""
    expected = np.maximum(expected, LEAST_SHARE)
    observed = np.maximum(observed, LEAST_SHARE)
    return float(((observed - expected) * np.log(observed / expected)).sum())


class DriftWindow:
    """Hold the codes of the newest rows.

    Args:
        contract: What the network learned from.
        levels: Of each column those that have a code; None of numbers.
    """

    def __init__(self, contract: Contract, levels: Sequence[Sequence[str] | None]) -> None:
        self._terms = tuple(zip(contract.columns, levels, strict=True))
        self._codes = np.empty((WINDOW_ROWS, len(self._terms)))
        self._total = 0
        self._lock = threading.Lock()

    @property
    def rows(self) -> int:
        """Count the rows that are held."""
        return min(self._total, WINDOW_ROWS)

    def add(self, coded: np.ndarray) -> None:
        """Take in rows ``[N, C]`` in place of the oldest."""
        # Places go round, over the oldest rows; to keep the arrays of requests would keep the pages around them too.
        with self._lock:
            places = (self._total + np.arange(len(coded))) % WINDOW_ROWS
            self._codes[places] = coded
            self._total += len(coded)

    def psi(self) -> dict[str, float]:
        """Compute the index of each column, by deciles or levels, with a bin for missing values; of few rows none."""
        with self._lock:
            codes = self._codes[: self.rows].copy()
        # A copy is read at leisure while requests go on.
        if len(codes) < LEAST_ROWS:
            return {}
        return {
            column.name: psi(*_shares(column, levels, codes[:, place]))
            for place, (column, levels) in enumerate(self._terms)
        }


def _shares(column: ContractColumn, levels: Any, values: np.ndarray) -> tuple[Any, Any]:
    """Compute the shares of bins in training and among values; the last bin is missing."""
    if levels is None:
        bins = decile_bins(values, column.quantiles)
        expected = [*column.decile_shares]
    else:
        # One past the last level are all others.
        bins = np.nan_to_num(values)
        expected = [column.shares[level] for level in levels]
        expected.append(1 - sum(expected) - column.missing_share)
    # Shares of all rows, so that a bin for missing values completes them.
    bins = np.where(np.isnan(values), len(expected), bins).astype(int)
    observed = np.bincount(bins, minlength=len(expected) + 1) / len(values)
    return np.array([*expected, column.missing_share]), observed
