"""The front against a comparison of all pairs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simic.audit.figures import pareto_front

POINT = st.tuples(st.integers(0, 4), st.integers(0, 4))  # cost, gain


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(POINT, max_size=9))
def test_the_front_is_what_no_other_point_weakly_dominates_and_of_equals_the_first(values):
    points = {f"p{i}": value for i, value in enumerate(values)}
    beaten = {one for one in set(values) for cost, gain in set(values) - {one} if cost <= one[0] and gain >= one[1]}
    assert pareto_front(points) == [f"p{values.index(value)}" for value in sorted(set(values) - beaten)]
