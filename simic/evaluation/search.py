"""What a search by hand finds with k trainings: random search and the best choice of each instance.

All read tables ``[instances, choices]``: the validation and the test score of every open-loop choice on every
instance. A choice made on one table is scored on another (other hosts), or the winner's luck would count as skill.
"""

import numpy as np

from simic.errors import SimicError
from simic.evaluation.intervals import Values


def best_choices(val: Values) -> Values:
    """Weigh the choices of each instance: those that are best by validation share 1 equally, as if one were drawn.

    Args and result are ``[instances, choices]``.
    """
    best = val == val.max(axis=1, keepdims=True)
    return best / best.sum(axis=1, keepdims=True)


def random_search(val: Values, test: Values) -> Values:
    """Compute the expected test score ``[instances, choices]`` of the best by validation of k = 1, 2, … choices (column
    k − 1).

    The k are drawn without replacement, and the expectation is exact: all k rank at or below r with probability C(r, k)
    / C(n, k), so the choice of rank r wins with the increment from r − 1 to r. Of equal validation scores in a draw
    each wins equally often, so equals count with the mean of their test scores. SimicError where a score is no number.
    """
    if not (np.isfinite(val).all() and np.isfinite(test).all()):
        raise SimicError(
            "a search table has non-finite scores: every choice must be scored on every instance"
        )
    # Equals in validation share their test scores, then choices are sorted from the worst on.
    n = val.shape[1]
    equal = val[:, :, None] == val[:, None, :]
    shared = (equal * test[:, None, :]).sum(axis=2) / equal.sum(axis=2)
    ranked = np.take_along_axis(shared, val.argsort(axis=1, kind="stable"), axis=1)
    # P(all k are among the r lowest) = ∏ (r − i) / (n − i) over i < k, for every r and k.
    drawn = np.arange(n)
    rank = np.arange(n + 1)[:, None]
    below = np.cumprod((rank - drawn) / (n - drawn), axis=1)  # [rank, k]
    return ranked @ np.diff(below, axis=0)
