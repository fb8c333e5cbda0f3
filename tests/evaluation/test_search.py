"""What a search finds, against every draw enumerated, and tables without any better choice."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simic.errors import SimicError
from simic.evaluation import search

COARSE = st.integers(0, 3).map(float)  # few values: ties everywhere


def enumerated(val, test, k):
    """Mean over all draws of k choices of one instance; of the best ones of a draw, each with equal share."""
    means = []
    for draw in itertools.combinations(range(len(val)), k):
        best = max(val[i] for i in draw)
        means.append(np.mean([test[i] for i in draw if val[i] == best]))
    return np.mean(means)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(arrays(float, (2, 6), elements=COARSE), arrays(float, (2, 6), elements=st.floats(-50, 50)))
def test_random_search_is_the_mean_over_every_draw_ties_included(val, test):
    curve = search.random_search(val, test)
    expected = [[enumerated(v, t, k) for k in range(1, 7)] for v, t in zip(val, test, strict=True)]
    assert curve == pytest.approx(np.array(expected), abs=1e-9)


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(SimicError, match="non-finite"):
        search.random_search(np.zeros((2, 3)), np.full((2, 3), np.nan))


def test_equal_choices_share_what_is_best():
    val = np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, 0.0, 9.0]])
    assert search.best_choices(val).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
