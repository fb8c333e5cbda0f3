"""Supervised choosers: planted outcomes are found on tasks not met, and openings are tried in the order expected."""

import numpy as np
import pytest
import torch

from benchmarks import choosers
from simic.errors import SimicError


def planted(hosts=240):
    """Three openings; which is best hides in one of four numbers: 10 points for it, 0 for the others."""
    numbers = np.random.default_rng(3).normal(size=(hosts, 4))
    best = (numbers[:, 2] > 0.5).astype(int) + (numbers[:, 2] > -0.5)
    return numbers, 60.0 + 10.0 * np.eye(3)[best], best


def test_a_planted_dependence_is_found_on_tasks_not_met_and_noise_is_not():
    numbers, scores, best = planted()
    folds = choosers.folds_of(torch.arange(240), 240)
    gains = scores - scores.mean(axis=1, keepdims=True)
    leaf, model = choosers.fit(numbers, scores, folds)
    # The best is 10 − 10/3 above the mean of the three, a random one 0.
    assert choosers.chosen_gain(leaf, numbers, gains, folds) == pytest.approx(20 / 3, abs=0.4)
    assert (model.predict(numbers).argmax(axis=1) == best).mean() > 0.97
    shuffled = gains[np.random.default_rng(4).permutation(240)]
    assert abs(choosers.chosen_gain(4, numbers, shuffled, folds)) < 1.0
    with pytest.raises(SimicError, match="needs more tasks"):
        choosers.chosen_gain(4, numbers, scores, np.zeros(240, dtype=np.int64))
