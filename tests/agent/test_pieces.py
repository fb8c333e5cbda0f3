"""A large minibatch is learned from in two pieces: the step is that of one piece, on any number of threads."""

import dataclasses

import pytest
import torch

from simic import threads
from simic.agent import ppo as module
from simic.agent.metrics import UpdateMetrics
from tests import standard

from .worlds import learner, weights

SETTINGS = standard.PPOParams(learning_rate=1e-2, epochs=2, minibatches=2, target_kl=None)


def updated() -> tuple[torch.Tensor, UpdateMetrics]:
    ppo, rollout = learner(SETTINGS)
    metrics = ppo.update(rollout, 0)
    return weights(ppo), metrics


def test_two_pieces_make_the_step_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments of a minibatch are three, so the pieces are unequal."""
    whole, of_whole = updated()
    monkeypatch.setattr(module, "LEAST_SHARED", 1)
    cut, of_pieces = updated()
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-5)
    for name, value in dataclasses.asdict(of_whole).items():
        assert dataclasses.asdict(of_pieces)[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SHARED", 1)
    alone, _ = updated()
    threads.set_count(2)
    shared, _ = updated()
    assert torch.equal(alone, shared)
