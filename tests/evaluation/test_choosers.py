"""Supervised choosers: planted outcomes are found on tasks not met, and openings are tried in the order expected."""

import numpy as np
import pytest
import torch

from benchmarks import choosers
from simic.errors import SimicError


def test_hosts_of_a_task_share_a_fold():
    folds = choosers.folds_of(torch.arange(60), 20)
    assert (folds[:20] == folds[20:40]).all() and (folds[:20] == folds[40:]).all()
    assert np.bincount(folds[:20]).tolist() == [5, 5, 5, 5]
    assert len(set(choosers.folds_of(torch.arange(8), 1).tolist())) == 4


def planted(hosts=240):
    """Three openings; which is best hides in one of four numbers: 10 points for it, 0 for the others."""
    seen = np.random.default_rng(3).normal(size=(hosts, 4))
    best = (seen[:, 2] > 0.5).astype(int) + (seen[:, 2] > -0.5)
    return seen, 60.0 + 10.0 * np.eye(3)[best], best


def test_a_planted_dependence_is_found_on_tasks_not_met_and_noise_is_not():
    seen, scores, best = planted()
    folds = choosers.folds_of(torch.arange(240), 240)
    gains = scores - scores.mean(axis=1, keepdims=True)
    leaf, model = choosers.fit(seen, scores, folds)
    # The best is 10 − 10/3 above the mean of the three, a random one 0.
    assert choosers.chosen_gain(leaf, seen, gains, folds) == pytest.approx(20 / 3, abs=0.4)
    assert (model.predict(seen).argmax(axis=1) == best).mean() > 0.97
    shuffled = gains[np.random.default_rng(4).permutation(240)]
    assert abs(choosers.chosen_gain(4, seen, shuffled, folds)) < 1.0
    with pytest.raises(SimicError, match="needs more tasks"):
        choosers.chosen_gain(4, seen, scores, np.zeros(240, dtype=np.int64))
