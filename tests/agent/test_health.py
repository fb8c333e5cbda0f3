"""Health of the memory, measured on numbers whose answer is known."""

import math

import pytest
import torch

from simic.agent.metrics import health

STEPS = 5
ENVS = 4
UNITS = 40
EVERY = torch.ones(STEPS, ENVS, dtype=torch.bool)


def test_growth_and_saturation_by_hand_where_rows_behind_an_end_count_for_nothing() -> None:
    hidden = torch.full((STEPS, ENVS, UNITS), 0.1)
    hidden[1] = 0.995
    hidden[3] = 0.5
    # The last step that anyone plays is the fourth.
    valid = EVERY.clone()
    valid[4] = False
    valid[2:, 1] = False
    hidden[~valid] = 7.0
    health_of_rows = health(hidden, valid)
    assert health_of_rows["hidden_growth"].item() == pytest.approx(5.0)
    assert health_of_rows["hidden_saturated"].item() == pytest.approx(4 / 14)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_memory_is_not_called_healthy(broken: float) -> None:
    hidden = torch.full((STEPS, ENVS, UNITS), 0.1)
    hidden[-1, 2, 3] = broken
    assert not health(hidden, EVERY)["hidden_growth"].isfinite()


@pytest.mark.parametrize("share", [0, 1])
def test_a_minibatch_shared_out_to_processes_is_measured_as_one(share: int) -> None:
    hidden = torch.rand(STEPS, ENVS, UNITS, generator=torch.Generator().manual_seed(1))
    valid = EVERY.clone()
    valid[3:, 0] = False
    sums = []  # what the other process adds, in the order of its sums
    health(hidden[:, share:], valid[:, share:], lambda x, _: sums.append(x) or x)
    shared = health(hidden[:, :share], valid[:, :share], lambda x, _: x + sums.pop(0))
    for name, value in health(hidden, valid).items():
        assert torch.allclose(shared[name], value, rtol=1e-5), name
