"""The front against a comparison of all pairs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simic.evaluation.pareto import pareto_front


def no_worse(one, other):
    """At most the other's costs, at least its gain."""
    return all(a <= b for a, b in zip(one[:-1], other[:-1], strict=True)) and one[-1] >= other[-1]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.sampled_from([2, 3, 4]).flatmap(
        lambda criteria: st.lists(st.tuples(*[st.integers(0, 4).map(float)] * criteria), max_size=9)
    )
)
def test_the_front_is_what_no_other_point_weakly_dominates(values):
    points = {f"p{i}": value for i, value in enumerate(values)}
    front = pareto_front(points)
    beaten = {
        name
        for name, point in points.items()
        if any(no_worse(other, point) and other != point for other in points.values())
    }
    assert not beaten & set(front)
    # All the others are there, of equal ones the first.
    assert sorted(points[name] for name in front) == sorted({points[name] for name in set(points) - beaten})
    assert all(name == min(each for each in points if points[each] == points[name]) for name in front)
    assert [points[name][:-1] for name in front] == sorted(points[name][:-1] for name in front)
