"""Advantages of the reference against sums done by hand."""

import math

import pytest
import torch

from simic.audit.reference.agent.advantages import generalized, standardized, summary

GAMMA, DECAY = 0.5, 0.5


def of(terminated, truncated, valid=(True, True, True)):
    return generalized([1.0, 2.0, 4.0], [0.5, 1.0, 2.0], [1.0, 2.0, 8.0], terminated, truncated, valid, GAMMA, DECAY)


def test_a_terminal_state_is_worth_nothing():
    """δ = 1 + ½·1 − ½ = 1, 2 + ½·2 − 1 = 2, 4 − 2 = 2; A₂ = 2, A₁ = 2 + ¼·2 = 2.5, A₀ = 1 + ¼·2.5 = 1.625."""
    advantages, returns = of([False, False, True], [False] * 3)
    assert advantages == [1.625, 2.5, 2.0]
    assert returns == [2.125, 3.5, 4.0]


def test_a_truncated_state_is_worth_its_value_and_cuts_the_trace():
    """δ₂ = 4 + ½·8 − 2 = 6; the end after step 1 keeps δ₂ out of A₁ = 2 and A₀ = 1 + ¼·2."""
    advantages, _ = of([False] * 3, [False, True, True])
    assert advantages == [1.5, 2.0, 6.0]


def test_terminal_wins_over_truncated():
    assert of([False, False, True], [False, False, True]) == of([False, False, True], [False] * 3)


def test_nothing_is_gained_behind_the_end():
    advantages, returns = of([False, True, False], [False] * 3, (True, True, False))
    assert advantages == [1.25, 1.0, 0.0] and returns == [1.75, 2.0, 0.0]


def test_advantages_are_standardized_over_decisions():
    """1 and 3: mean 2, σ 1. Differences below the floor of 0.1 are not blown up; without a decision all are 0."""
    valid = torch.tensor([[True], [True], [False]])
    advantages = torch.tensor([[1.0], [3.0], [99.0]], dtype=torch.float64)
    assert standardized(advantages, valid).flatten().tolist() == [-1.0, 1.0, 0.0]
    small = torch.tensor([[1.0], [1.02], [99.0]], dtype=torch.float64)
    assert standardized(small, valid).flatten().tolist() == pytest.approx([-0.1, 0.1, 0.0])
    assert not standardized(small, valid & ~valid).any()


def test_explained_variance_is_the_share_that_values_explain():
    """Returns 1, 3 (variance 1); what values leave is −½, ½ (variance ¼)."""
    returns, values = torch.tensor([[1.0, 3.0]]), torch.tensor([[1.5, 2.5]])
    valid = torch.ones(1, 2, dtype=torch.bool)
    found = summary(returns - values, returns, values, valid)
    assert found["explained_variance"] == 0.75 and found["return_std"] == 1.0 and found["advantage_mean"] == 0.0
    assert math.isnan(summary(values, values * 0, values, valid)["explained_variance"])
