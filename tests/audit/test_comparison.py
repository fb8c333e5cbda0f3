"""When a recomputation agrees."""

import math

from simic.audit.comparison import Comparison


def test_a_comparison_is_ok_up_to_what_rounding_explains():
    assert Comparison("weights", "iteration 1", 1e-6, 1e-6).ok
    assert not Comparison("weights", "iteration 1", 1.1e-6, 1e-6).ok


def test_nan_and_infinity_are_never_ok():
    assert not Comparison("weights", "iteration 1", math.nan, math.inf).ok
    assert not Comparison("weights", "iteration 1", math.inf, 1.0).ok
