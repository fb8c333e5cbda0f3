"""How much of the gap between the best common schedule and the oracle a policy closes, over the instances of a suite.

Scores are ``[training seeds, instances]`` or, of one training seed or of what is not trained, ``[instances]``. Every
training seed meets the same instances. Intervals are Student's t of a mean and Fieller's of a ratio of means, which
asks the same t for every ratio: on scores spread as those of tasks are their rate of false positives is closer to 5 %
than that of percentile, basic and BCa bootstraps (docs/history/experiments.md).
"""

import numpy as np
from numpy.typing import ArrayLike
from pydantic.dataclasses import dataclass
from scipy import optimize, special

from simic.evaluation.statistics import CONFIDENCE, Interval, Values

ROUNDING = 1e-9  # relative: a smaller spread is that of sums in another order


@dataclass(frozen=True)
class GapClosed:
    """mean(policy − common) / mean(oracle − common) and the gap itself; without a share, the reason."""

    share: Interval | None
    gap: Interval
    undefined: str  # why there is no share; empty where there is one


def paired_difference(first: ArrayLike, second: ArrayLike) -> Interval:
    """Return the mean of first − second over instances and training seeds, in the unit of the scores."""
    difference = _per_seed(first) - _per_seed(second)
    mean, half = float(difference.mean()), _half_width(difference)
    return Interval(mean, mean - half, mean + half)


def gap_closed(policy: ArrayLike, common: ArrayLike, oracle: ArrayLike) -> GapClosed:
    """Return the share of the gap that the policy closes; none where the interval of the gap includes values ≤ 0."""
    achieved, floor, best = map(_per_seed, (policy, common, oracle))
    gap = paired_difference(best, floor)
    if gap.low <= 0:
        said = f"{gap.estimate:.2f} [{gap.low:.2f}, {gap.high:.2f}]"
        return GapClosed(None, gap, f"oracle - common is {said} and may be 0")
    return GapClosed(_ratio(achieved - floor, best - floor), gap, "")


def _per_seed(scores: ArrayLike) -> Values:
    """Return scores as ``[training seeds, instances]``."""
    return np.atleast_2d(np.asarray(scores, dtype=np.float64))


def _half_width(values: Values) -> float:
    """Return half the 95 % interval of the mean of ``values [training seeds, instances]``.

    Seeds and instances are crossed and both are drawn from more, so the variance of the mean is that of the two-way
    random-effects table, with Satterthwaite's degrees of freedom (Searle, Casella, McCulloch 1992, ch. 4).
    """
    seeds, instances = values.shape
    of_instance = seeds * float(values.mean(axis=0).var(ddof=1))  # mean squares
    square, freedom = of_instance, float(instances - 1)
    if seeds > 1:
        of_seed = instances * float(values.mean(axis=1).var(ddof=1))
        rest = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
        residual = float((rest**2).sum()) / ((seeds - 1) * (instances - 1))
        square = max(of_seed + of_instance - residual, of_seed, of_instance)
        parts = of_seed**2 / (seeds - 1) + of_instance**2 / (instances - 1)
        parts += residual**2 / ((seeds - 1) * (instances - 1))
        freedom = square**2 / parts if parts > 0 else freedom
    return float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * float(np.sqrt(square / values.size))


def _ratio(part: Values, whole: Values) -> Interval:
    """Return mean(part) / mean(whole), and every ratio r for which the interval of part − r · whole includes 0.

    The whole is above 0 by its own interval, so this set has two ends (Fieller 1954).
    """
    estimate = float(part.mean() / whole.mean())

    def excess(ratio: float) -> float:  # above 0 where the ratio is rejected
        left = part - ratio * whole
        return abs(float(left.mean())) - _half_width(left)

    def end(step: float) -> float:
        while excess(estimate + step) < 0:
            step *= 2
        return float(optimize.root_scalar(excess, bracket=(estimate, estimate + step), xtol=1e-9).root)

    if excess(estimate) >= -ROUNDING * float(np.abs(part).max() + np.abs(whole).max()):
        return Interval(estimate, estimate, estimate)  # the part is the same share of the whole everywhere
    return Interval(estimate, end(-0.1), end(0.1))
