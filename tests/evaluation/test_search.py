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


def test_oracles_by_hand():
    def oracle(kinds=None):
        return (test * search.best_choices(val, kinds)).sum(axis=1).tolist()

    val = np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, 0.0, 9.0]])
    test = np.array([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0], [70.0, 80.0, 90.0]])
    assert oracle() == [10.0, 55.0, 90.0]  # the second shares between two equals
    # Kind a: means 1.5, 1.5, 1.0, so choices 0 and 1 share; kind b has one instance.
    assert oracle(["a", "a", "b"]) == [15.0, 45.0, 90.0]
    assert search.best_common(val) == 2  # means 1, 1, 3.67
    assert search.best_common(val[:, :2]) == 0  # equal: the first


def test_a_choice_scored_on_other_hosts_does_not_profit_from_luck():
    """Of 20 choices that are all equal, over 200 tables."""
    generator = np.random.default_rng([1, 11])
    same, other = [], []
    for _ in range(200):
        chosen, scored = generator.normal(70, 5, (2, 40, 20))
        common = search.best_common(generator.normal(70, 5, (40, 20)))
        for gaps, table in ((same, chosen), (other, scored)):
            oracle = (table * search.best_choices(chosen)).sum(axis=1)
            gaps.append(float((oracle - table[:, common]).mean()))
    error = np.std(other, ddof=1) / np.sqrt(200)
    assert abs(np.mean(other)) < 3 * error and error < 0.1
    # The expected largest of 20 normals of 5 points is 1.867 · 5 above their mean.
    assert np.mean(same) == pytest.approx(9.34, abs=0.3)


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (60.0, "1.0"),
        (70.0, "2.0"),
        (65.0, "1.4"),  # halfway from 60 to 70 in log k: the root of 2
        (75.0, "2.4"),  # halfway from 2 to 3: the root of 6
        (59.0, "< 1"),
        (80.0, "3.0"),
        (81.0, "> 3"),
    ],
)
def test_the_worth_of_a_score_is_interpolated_in_log_k(score, said):
    assert str(search.search_worth(np.full(5, score), np.tile([60.0, 70.0, 80.0], (5, 1)))) == said
