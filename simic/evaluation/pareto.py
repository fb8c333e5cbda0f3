"""Who is beaten by nobody: the Pareto front of a gain against any number of costs."""

from collections.abc import Mapping

from simic.errors import SimicError


def pareto_front(points: Mapping[str, tuple[float, ...]]) -> list[str]:
    """Return the names of the points (cost, …, gain) that no other weakly dominates, by rising costs; of equals the
    first name.
    """
    if len({len(point) for point in points.values()}) > 1:
        raise SimicError("points of a Pareto front have different numbers of criteria: each needs every cost, a gain")
    front: list[str] = []
    # Nobody is dominated by one who comes later in this order, so the front so far is all that has to be asked.
    for name in sorted(points, key=lambda each: (*points[each][:-1], -points[each][-1], each)):
        *costs, gain = points[name]
        others = [points[each] for each in front]
        beaten = [o[-1] >= gain and all(c <= d for c, d in zip(o, costs, strict=False)) for o in others]
        if not any(beaten):
            front.append(name)
    return front
