"""Configurations, contributions and their standard errors."""

import math

import torch

from simic.envs import attribution
from simic.envs.attribution import ALL_OFF, COMMITTED, MAIN, WITHOUT
from simic.growth.vocabulary import Stage


def example(make_slots):
    stages = [
        [Stage.DORMANT, Stage.HOLDING, Stage.FOSSILIZED],
        [Stage.TRAINING, Stage.BLENDING, Stage.PRUNED],
    ]
    return make_slots(stages, alpha=[[0.0, 1.0, 1.0], [0.0, 0.5, 0.0]])


def test_configurations_leave_out_what_they_say(make_slots):
    off = attribution.configurations(example(make_slots))
    assert off.shape == (3 + 3, 2, 3)
    assert not off[MAIN].any()
    assert off[ALL_OFF].tolist() == [[False, True, True], [False, True, False]]
    assert off[COMMITTED].tolist() == [[False, True, False], [False, True, False]]
    for k in range(3):
        acting = [[False, True, True], [False, True, False]]
        assert off[WITHOUT + k].tolist() == [[row[j] and j == k for j in range(3)] for row in acting]


def test_contribution_is_the_difference_of_accuracies_and_nan_where_nothing_acts(make_slots):
    slots = example(make_slots)
    generator = torch.Generator().manual_seed(3)
    correct = torch.rand(6, 2, 400, generator=generator) < 0.6
    result = attribution.attribute(slots, correct, torch.ones(6, 2))
    acting = attribution.measurable(slots)
    assert acting.tolist() == [[False, True, True], [False, True, False]]
    assert torch.equal(result.contribution.isnan(), ~acting) and torch.equal(result.contribution_se.isnan(), ~acting)
    for env, slot in ((0, 1), (0, 2), (1, 1)):
        main, without = correct[MAIN, env].tolist(), correct[WITHOUT + slot, env].tolist()
        expected = 100 * (sum(main) - sum(without)) / 400
        assert abs(float(result.contribution[env, slot]) - expected) < 1e-3
        differences = [a - b for a, b in zip(main, without, strict=True)]
        mean = sum(differences) / 400
        variance = sum((d - mean) ** 2 for d in differences) / 399
        assert abs(float(result.contribution_se[env, slot]) - 100 * math.sqrt(variance / 400)) < 1e-3
    assert abs(float(result.accuracy[1]) - 100 * sum(correct[MAIN, 1].tolist()) / 400) < 1e-3
    assert abs(float(result.committed_accuracy[0]) - 100 * sum(correct[COMMITTED, 0].tolist()) / 400) < 1e-3
    assert abs(float(result.all_off_accuracy[1]) - 100 * sum(correct[ALL_OFF, 1].tolist()) / 400) < 1e-3


def test_paired_error_is_smaller_than_that_of_independent_samples():
    """5 of 100 samples differ, all one way: d has mean .05 and standard deviation sqrt(.05·.95·100/99)."""
    first = torch.zeros(100, dtype=torch.bool)
    second = first.clone()
    first[:50], second[5:50] = True, True
    difference, error = attribution.paired_difference(first, second)
    assert abs(float(difference) - 5.0) < 1e-4
    assert abs(float(error) - 100 * math.sqrt(0.05 * 0.95 * 100 / 99) / 10) < 1e-4


def test_a_network_that_is_not_finite_has_no_accuracy(make_slots):
    slots = example(make_slots)
    correct = torch.ones(6, 2, 10, dtype=torch.bool)
    loss = torch.ones(6, 2)
    loss[MAIN, 0], loss[WITHOUT + 1, 1] = math.nan, math.inf
    result = attribution.attribute(slots, correct, loss)
    assert result.accuracy[0].isnan() and result.contribution[0].isnan().all()
    assert not result.accuracy[1].isnan() and result.contribution[1].isnan().all()
    assert not result.committed_accuracy.isnan().any()
