"""A comparison is in order within its bound alone."""

import math

from simic.audit.comparison import Comparison


def test_nan_is_never_in_order() -> None:
    oks = [Comparison("loss", "step 1", deviation, 1.0).ok for deviation in (0.0, 1.0, 1.1, math.inf, math.nan)]
    assert oks == [True, True, False, False, False]
