"""Recorded curves as an environment, in which a training is spent."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from benchmarks.together import Tasks
from benchmarks.together_bank import (
    CANDIDATES,
    POINTS,
    SHARES,
    Bank,
    Spending,
    gains_of,
    learned,
    play,
    timeline,
)
from benchmarks.together_rivals import EPOCHS

SETS = CANDIDATES + 2


@pytest.fixture
def tasks() -> Tasks:
    """Of sets that are good or bad, which the curves show from the first epoch on, and nothing else does."""
    draw = np.random.default_rng(0)
    is_good = draw.random((96, SETS)) < 0.3
    val = np.where(is_good, 0.9, 0.5)[..., None] + draw.normal(0, 0.01, (96, SETS, EPOCHS))
    test = val + draw.normal(0, 0.01, val.shape)
    expected = np.repeat(-np.arange(SETS) / SETS, 2).reshape(SETS, 2)[None].repeat(96, 0)
    order = np.argsort(-expected[..., 0], 1, kind="stable")
    # Only its tensors are read.
    return Tasks(Mock(), val, test, expected, order)


def test_a_bank_has_what_is_seen_after_each_share_and_what_keeping_pays(tasks: Tasks) -> None:
    shuffled = replace(tasks, order=tasks.order[:, ::-1])
    bank = Bank.of(shuffled)
    assert bank.features.shape == (96, CANDIDATES, SHARES + 1, 6)
    # The second candidate is the last set but one.
    share, last, mean, best = bank.features[3, 1, 5, 2:].tolist()
    curve = tasks.val[3, SETS - 2, :10]
    assert (share, last) == pytest.approx((10 / EPOCHS, curve[9]))
    assert (mean, best) == pytest.approx((curve[8:].mean(), curve.max()))
    assert bank.features[3, 1, 0].tolist() == pytest.approx(
        [*tasks.expected[3, SETS - 2], 0, 0, 0, 0]
    )
    paid = tasks.test[3, SETS - 2, 9] - tasks.test[3, SETS - 1, -1]
    assert float(bank.pays[3, 1, 5]) == pytest.approx(paid, abs=1e-6)


def test_a_training_is_spent_and_one_that_had_a_share_is_kept(tasks: Tasks) -> None:
    bank = Bank.of(tasks)
    env = Spending(bank, 2)
    env.reset(seed=1)
    env.start(
        torch.tensor([4, 7]), torch.tensor([[*range(CANDIDATES)], [*range(CANDIDATES)][::-1]])
    )
    for number in range(SHARES):
        assert env.action_masks().all()
        _, reward, ended, _, _ = env.step(torch.tensor([number % 2, 3]))
        assert not reward.any() and not ended.any()
    assert env.action_masks().nonzero().tolist() == [[0, 0], [0, 1], [1, 3]]
    # The second has its candidates in the other order.
    _, reward, ended, _, _ = env.step(torch.tensor([1, 3]))
    paid = [bank.pays[4, 1, SHARES // 2], bank.pays[7, CANDIDATES - 4, SHARES]]
    assert reward.tolist() == pytest.approx([POINTS * float(x) for x in paid])
    assert ended.all() and not env.shares.any()


def test_ppo_learns_to_leave_what_turns_out_bad_and_cannot_without_seeing_it(tasks: Tasks) -> None:
    bank = Bank.of(tasks)
    agent = learned(bank, 1, 100_000)
    chosen, shares = play(agent, bank)
    gain = gains_of(bank, chosen, shares).mean()
    # A good one is among the first with 94 %, and the first is good with 30.
    assert gain > 0.5 * 0.4 * 0.64
    assert gains_of(bank, *play(agent, bank.blind())).mean() < gain - 0.05
    told = timeline(bank, 0, chosen[0], 0.25)
    assert told["candidates"].split() == [str(candidate) for candidate in chosen[0]]
    assert len(told["validation"].split()) == SHARES
    assert told["over_chooser"] == 25.0
