"""Health of the memory, measured on numbers whose answer is known."""

import math

import pytest
import torch

from simic.agent.metrics import health
from simic.agent.policy import Replay
from simic.transfer import Reduce, alone

STEPS, ENVS, UNITS = 5, 4, 40
EVERY = torch.ones(STEPS, ENVS, dtype=torch.bool)


def measured(
    hidden: torch.Tensor, valid: torch.Tensor = EVERY, reduce: Reduce = alone
) -> dict[str, torch.Tensor]:
    nothing = torch.zeros(hidden.shape[:2])
    return health(Replay(nothing[..., None], nothing[..., None], nothing, hidden), valid, reduce)


def test_rows_behind_the_end_of_an_episode_count_for_nothing() -> None:
    hidden = torch.full((STEPS, ENVS, UNITS), 0.1)
    hidden[3] = 0.2
    valid = EVERY.clone()
    valid[4], valid[2:, 1] = False, False
    clean = measured(hidden, valid)
    assert measured(hidden.masked_fill(~valid[..., None], 7.0), valid) == clean
    assert clean["hidden_growth"].item() == pytest.approx(
        2.0
    )  # the last step that anyone plays is the fourth


def test_growth_and_saturation_by_hand() -> None:
    hidden = torch.full((STEPS, ENVS, UNITS), 0.1)
    hidden[-1] = 0.5
    assert measured(hidden)["hidden_growth"].item() == pytest.approx(5.0)
    assert measured(hidden)["hidden_saturated"] == 0.0
    hidden[1] = 0.995
    assert measured(hidden)["hidden_saturated"].item() == pytest.approx(1 / 5)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_memory_is_not_called_healthy(broken: float) -> None:
    hidden = torch.full((STEPS, ENVS, UNITS), 0.1)
    hidden[-1, 2, 3] = broken
    assert not measured(hidden)["hidden_growth"].isfinite()


@pytest.mark.parametrize("own", [0, 1])
def test_a_minibatch_shared_out_to_processes_is_measured_as_one(own: int) -> None:
    hidden = torch.rand(STEPS, ENVS, UNITS, generator=torch.Generator().manual_seed(1))
    valid = EVERY.clone()
    valid[3:, 0] = False
    others = []  # what the other process adds, in the order of its sums
    measured(hidden[:, own:], valid[:, own:], lambda x, _: others.append(x) or x)
    found = measured(hidden[:, :own], valid[:, :own], lambda x, _: x + others.pop(0))
    for name, value in measured(hidden, valid).items():
        assert torch.allclose(found[name], value, rtol=1e-5), name
