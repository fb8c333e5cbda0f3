"""The tracker against a plain list-keeping one."""

import math
from dataclasses import fields

import pytest
import torch

from simic.envs import tracker as tracking
from simic.envs.tracker import Tracker


class ListTracker:
    """Independent: one host, Python lists, one rule at a time."""

    def __init__(self):
        self.losses, self.accuracies, self.plateau, self.run, self.stabilised = [], [], 0, 0, False

    def update(self, loss, accuracy):
        if self.accuracies:
            self.plateau = self.plateau + 1 if accuracy - self.accuracies[-1] < 0.5 else 0
            previous = self.losses[-1]
            finite = math.isfinite(loss) and math.isfinite(previous) and previous != 0
            relative = (previous - loss) / previous if finite else math.inf
            self.run = self.run + 1 if -0.05 < relative < 0.03 else 0
            self.stabilised = self.stabilised or self.run >= 3
        self.losses.append(loss)
        self.accuracies.append(accuracy)


def test_tracker_equals_a_list_keeping_one():
    generator = torch.Generator().manual_seed(1)
    envs, steps = 6, 30
    tracker, oracles = Tracker.empty(envs), [ListTracker() for _ in range(envs)]
    loss, accuracy = torch.full((envs,), 2.0), torch.full((envs,), 10.0)
    for _ in range(steps):
        loss = loss * (1 + 0.08 * torch.randn(envs, generator=generator))
        accuracy = (accuracy + 2 * torch.randn(envs, generator=generator) + 0.5).clamp(0, 100)
        tracker = tracking.update(tracker, loss, accuracy)
        for env, oracle in enumerate(oracles):
            oracle.update(float(loss[env]), float(accuracy[env]))
            assert int(tracker.plateau[env]) == oracle.plateau
            assert int(tracker.stable_run[env]) == oracle.run
            assert bool(tracker.stabilised[env]) == oracle.stabilised
            assert float(tracker.best_accuracy[env]) == max(oracle.accuracies)
            assert float(tracker.stable_accuracy(3)[env]) == min(oracle.accuracies[-3:])
            known = oracle.losses[-tracking.WINDOW :]
            assert tracker.losses[env, -len(known) :].tolist() == known
            assert tracker.losses[env, : tracking.WINDOW - len(known)].isnan().all()
    assert any(oracle.stabilised for oracle in oracles)


def test_update_leaves_the_old_tracker_alone():
    before = tracking.update(Tracker.empty(2), torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]))
    copy = {name: value.clone() for name, value in before.state_dict().items()}
    tracking.update(before, torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0]))
    for field in fields(before):
        assert torch.equal(getattr(before, field.name).nan_to_num(-1), copy[field.name].nan_to_num(-1))


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
