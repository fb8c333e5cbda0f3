"""The alpha controller: monotone, within [0, 1], exact on arrival."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simic.growth.life.lifecycle import curve_value, ramp_tick, retarget
from simic.growth.life.vocabulary import Curve, Ramp, Slots

HERE = torch.tensor([[True]])


@given(
    start=st.floats(0, 1, width=32),
    target=st.floats(0, 1, width=32),
    steps=st.integers(0, 40),
    curve=st.sampled_from(list(Curve)),
)
def test_a_ramp_is_monotone_bounded_and_lands_exactly(start: float, target: float, steps: int, curve: Curve) -> None:
    slots = replace(Slots.empty(1, 1), alpha=torch.tensor([[start]]))
    slots = retarget(slots, HERE, torch.tensor([[target]]), torch.tensor([[steps]]), torch.tensor([[int(curve)]]))
    values = [start]
    ticks = 0
    while slots.ramp.item() != Ramp.HOLD:
        slots = ramp_tick(slots, HERE)
        values.append(slots.alpha.item())
        ticks += 1
    assert ticks == (0 if steps == 0 or start == target else steps)
    assert slots.alpha.item() == target
    assert values == sorted(values, reverse=target < start)
    assert all(min(start, target) <= value <= max(start, target) for value in values)


@pytest.mark.parametrize("curve", list(Curve))
def test_curves_start_at_0_and_end_at_1(curve: Curve) -> None:
    ends = curve_value(torch.tensor(int(curve)), torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(ends, torch.tensor([0.0, 0.5, 1.0]), atol=1e-6, rtol=0)


def test_a_sigmoid_value_by_hand() -> None:
    # σ(12·(¼−½)) = σ(−3), stretched by σ(±6): (0.0474259 − 0.0024726) / (0.9975274 − 0.0024726) = 0.0451766
    low, high = 1 / (1 + math.exp(6)), 1 / (1 + math.exp(-6))
    expected = (1 / (1 + math.exp(3)) - low) / (high - low)
    assert curve_value(torch.tensor(int(Curve.SIGMOID_12)), torch.tensor(0.25)).item() == pytest.approx(expected, 1e-5)
    assert expected == pytest.approx(0.0451766, abs=1e-6)
