"""Find the Pareto front of a gain against any number of costs."""

from collections.abc import Mapping


def pareto_front(points: Mapping[str, tuple[float, ...]]) -> list[str]:
    """Return the names of the points (cost, …, gain) that no other weakly dominates, by rising costs; of equals the
    first name.
    """
    front: list[str] = []
    # No point is dominated by one that comes later in this order, so comparing with the front so far is enough.
    for name in sorted(points, key=lambda each: (*points[each][:-1], -points[each][-1], each)):
        *costs, gain = points[name]
        others = [points[each] for each in front]
        if not any(o[-1] >= gain and all(c <= d for c, d in zip(o[:-1], costs, strict=True)) for o in others):
            front.append(name)
    return front
