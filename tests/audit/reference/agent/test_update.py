"""Updates of the reference: the order of minibatches, the schedule of entropy, and how far a step strayed."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from simic.audit.reference.agent.adam import Optimized, Rule, norm
from simic.audit.reference.agent.batch import Lessons
from simic.audit.reference.agent.trail import Strayed
from simic.audit.reference.agent.update import Learner, entropy_coef, learning_rate, reinforcing
from simic.params import PPOParams

RULE = Rule(rate=0.01, eps=1e-5, largest_norm=1.0)
WEIGHTS = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}
ZERO = {name: torch.zeros_like(weight) for name, weight in WEIGHTS.items()}
BEFORE = Optimized(WEIGHTS, ZERO, ZERO, 0)
GRADIENT = {"w": torch.tensor([0.1, -0.2], dtype=torch.float64), "b": torch.full((1,), 0.3, dtype=torch.float64)}
AFTER = BEFORE.stepped(GRADIENT, norm(GRADIENT), RULE)


def strayed(done: Optimized, derived: Optimized = AFTER) -> list[float]:
    found = Strayed.of(BEFORE, derived, done, RULE)
    return [found.weights.deviation, found.first.deviation, found.second.deviation]


def test_the_same_step_does_not_stray_nor_does_its_rounding():
    assert strayed(AFTER) == [0.0, 0.0, 0.0]
    rounded = [{n: x.float().double() for n, x in part.items()} for part in (AFTER.weights, AFTER.first, AFTER.second)]
    assert strayed(Optimized(*rounded, 1)) == [0.0, 0.0, 0.0]


def test_another_gradient_shows_in_the_moments_alone():
    """Twice b's gradient: first moment 0.06 in place of 0.03, a whole change; second 4 times, 3 changes."""
    other = BEFORE.stepped(GRADIENT | {"b": 2 * GRADIENT["b"]}, 0.0, RULE)
    assert strayed(other) == pytest.approx([0.0, 1.0, 3.0], abs=1e-5)


def test_another_step_shows_in_the_weights_alone():
    weights = {name: 2 * x - WEIGHTS[name] for name, x in AFTER.weights.items()}
    assert strayed(replace(AFTER, weights=weights)) == pytest.approx([1.0, 0.0, 0.0], abs=1e-4)


def test_nothing_moves_in_a_step_that_was_not_taken():
    assert strayed(BEFORE, BEFORE) == [0.0, 0.0, 0.0]
    assert strayed(AFTER, BEFORE) == [math.inf] * 3


def test_nan_is_the_worst():
    broken = {"w": AFTER.first["w"], "b": torch.full((1,), math.nan, dtype=torch.float64)}
    assert math.isnan(strayed(replace(AFTER, first=broken))[1])


def test_every_strand_is_in_one_minibatch_of_an_epoch_and_the_first_ones_are_larger():
    strands = tuple(SimpleNamespace(name=name) for name in (7, 3, 1, 9, 4))
    lessons = Lessons(strands, SimpleNamespace())
    orders = {
        epoch: [[strand.name for strand in part] for part in lessons.minibatches(1, 0, epoch, 2)] for epoch in (0, 1)
    }
    for parts in orders.values():
        assert [len(part) for part in parts] == [3, 2] and sorted(name for part in parts for name in part) == [
            1,
            3,
            4,
            7,
            9,
        ]
    assert orders[0] != orders[1]


def test_entropy_falls_from_the_first_update_to_the_last():
    settings = PPOParams(entropy_coef=0.5, entropy_coef_final=0.1)
    assert [entropy_coef(settings, done, 5) for done in (0, 2, 4, 9)] == pytest.approx([0.5, 0.3, 0.1, 0.1])
    assert entropy_coef(settings, 0, 1) == 0.5


def test_a_linear_rate_falls_to_a_fifth_and_any_other_stays():
    settings = PPOParams(learning_rate=0.5, learning_rate_schedule="linear")
    rates = [learning_rate(settings, Learner(BEFORE, updates, 0, 9.0), 5) for updates in (0, 2, 4, 9)]
    assert rates == pytest.approx([0.5, 0.3, 0.1, 0.1])
    assert learning_rate(PPOParams(), Learner(BEFORE, 2, 0, 9.0), 5) == 9.0


def test_an_update_ends_at_one_and_a_half_times_its_target():
    assert reinforcing(PPOParams(target_kl=0.02), 0.0, None).limit == pytest.approx(0.03)
    assert reinforcing(PPOParams(target_kl=None), 0.0, None).limit == math.inf
