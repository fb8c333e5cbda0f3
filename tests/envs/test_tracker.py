"""The tracker against the reference, one host at a time."""

import math

import pytest
import torch

from simic.certify.observations import History
from simic.envs import tracker as tracking
from simic.envs.tracker import Tracker


def test_tracker_is_that_of_the_reference():
    generator = torch.Generator().manual_seed(1)
    envs, steps = 6, 30
    tracker, references = Tracker.empty(envs), [History() for _ in range(envs)]
    loss, accuracy = torch.full((envs,), 2.0), torch.full((envs,), 10.0)
    for _ in range(steps):
        loss = loss * (1 + 0.08 * torch.randn(envs, generator=generator))
        accuracy = (accuracy + 2 * torch.randn(envs, generator=generator) + 0.5).clamp(0, 100)
        before, copy = tracker, copied(tracker)
        tracker = tracking.update(tracker, loss, accuracy)
        assert all(torch.equal(value, copied(before)[name]) for name, value in copy.items()), "it was changed in place"
        for env, reference in enumerate(references):
            reference.add(float(loss[env]), float(accuracy[env]))
            assert int(tracker.plateau[env]) == reference.plateau
            assert int(tracker.stable_run[env]) == reference.stable_run
            assert bool(tracker.stabilised[env]) == reference.stabilised
            assert float(tracker.best_accuracy[env]) == reference.best
            assert float(tracker.stable_accuracy(3)[env]) == min(reference.accuracies[-3:])
            known = len(reference.losses)
            assert tracker.losses[env, -known:].tolist() == reference.losses
            assert tracker.accuracies[env, -known:].tolist() == reference.accuracies
            assert tracker.losses[env, :-known].isnan().all()
    assert any(reference.stabilised for reference in references)


def copied(tracker: Tracker) -> dict[str, torch.Tensor]:
    return {name: value.nan_to_num(-1.0).clone() for name, value in vars(tracker).items()}


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
