"""The tracker against the reference, one host at a time."""

import math

import pytest
import torch

from simic.envs import tracker as tracking
from simic.envs.tracker import Tracker


def test_missing_measurements_are_neither_best_nor_stable():
    tracker = Tracker.empty(1)
    assert math.isnan(float(tracker.stable_accuracy(3)))
    for loss, accuracy in ((2.0, 10.0), (math.nan, math.nan), (math.inf, 10.0), (2.0, 12.0)):
        tracker = tracking.update(tracker, torch.tensor([loss]), torch.tensor([accuracy]))
    assert float(tracker.best_accuracy) == 12.0
    assert int(tracker.stable_run) == 0
    assert float(tracker.stable_accuracy(3)) == pytest.approx(10.0)


def test_a_gain_of_just_half_a_point_is_one_whatever_float32_makes_of_it():
    samples, gained = 600, 3
    counts = torch.arange(samples - gained)
    before, after = (100.0 * (number / samples) for number in (counts, counts + gained))
    assert (after - before < tracking.PLATEAU_PCT).any()  # rounding takes some of them for less
    tracker = tracking.update(Tracker.empty(len(counts)), torch.ones(len(counts)), before)
    assert (tracking.update(tracker, torch.ones(len(counts)), after).plateau == 0).all()
    short = tracking.update(tracker, torch.ones(len(counts)), after - 100.0 / samples)
    assert (short.plateau == 1).all()
