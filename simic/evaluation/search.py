"""What a search by hand finds with k trainings: random search, the oracle and the best common choice.

All read tables ``[instances, choices]``: the validation and the test score of every open-loop choice on every
instance. A choice made on one table is scored on another (other hosts), or the winner's luck would count as skill.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic.dataclasses import dataclass

from simic.errors import SimicError
from simic.evaluation.statistics import Values

ROUNDING = 1e-9  # in points: scores that agree to this are the same score, summed in another order


@dataclass(frozen=True)
class Trainings:
    """A number of trainings; at an end of what was searched, only known to lie beyond it."""

    count: float
    beyond: Literal["", "<", ">"] = ""

    def __str__(self) -> str:
        """Return it as in a table: "4.2", "< 1", "> 40"."""
        return f"{self.beyond} {self.count:.0f}" if self.beyond else f"{self.count:.1f}"


def best_common(val: Values) -> int:
    """Return the choice with the best mean validation score ``[instances, choices]``; of equals the first."""
    return int(val.mean(axis=0).argmax())


def best_choices(val: Values, kinds: Sequence[str] | None = None) -> Values:
    """Return weights ``[instances, choices]``, each row of sum 1: the best by validation of each instance or, given
    their kinds, of each kind; equals share equally, as if one of them were drawn.
    """
    chosen = val
    if kinds is not None:
        names, of_kind = np.unique(kinds, return_inverse=True)
        chosen = np.stack([val[of_kind == kind].mean(axis=0) for kind in range(len(names))])[of_kind]
    best = chosen == chosen.max(axis=1, keepdims=True)
    return best / best.sum(axis=1, keepdims=True)


def random_search(val: Values, test: Values) -> Values:
    """Return the expected test score ``[instances, choices]`` of the best by validation of k = 1, 2, … choices (column
    k − 1).

    The k are drawn without replacement, and the expectation is exact: all k rank at or below r with probability C(r, k)
    / C(n, k), so the choice of rank r wins with the increment from r − 1 to r. Of equal validation scores in a draw
    each wins equally often, so equals count with the mean of their test scores. SimicError where a score is no number.
    """
    if not (np.isfinite(val).all() and np.isfinite(test).all()):
        raise SimicError("a search table has non-finite scores: every choice must be scored on every instance")
    n = val.shape[1]
    equal = val[:, :, None] == val[:, None, :]
    shared = (equal * test[:, None, :]).sum(axis=2) / equal.sum(axis=2)
    ranked = np.take_along_axis(shared, val.argsort(axis=1, kind="stable"), axis=1)
    drawn = np.arange(n)
    below = np.cumprod((np.arange(n + 1)[:, None] - drawn) / (n - drawn), axis=1)  # [rank, k]
    return ranked @ np.diff(below, axis=0)


def search_worth(policy: Values, searched: Values) -> Trainings:
    """Return with how many trainings random search reaches the mean score of a policy ``[instances]``: where its lead
    over ``searched``, as random_search gives it, is gone for the first time, interpolated in log k.
    """
    lead = np.array([(policy - with_k).mean() for with_k in searched.T])
    gone = np.flatnonzero(lead <= ROUNDING)
    if gone.size == 0:
        return Trainings(float(lead.size), ">")
    k = int(gone[0])
    if k == 0:
        return Trainings(1.0, "<" if lead[0] < -ROUNDING else "")
    part = lead[k - 1] / (lead[k - 1] - lead[k])
    return Trainings(float(np.exp(np.log(k) + part * np.log((k + 1) / k))))
