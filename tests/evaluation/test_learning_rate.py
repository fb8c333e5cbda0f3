"""The learning rate of a policy's hosts is the best on validation, and its search is paid for."""

import pytest
import torch
from tiny import STEPS, TASKS, tiny_env, tiny_train

from simic.envs.play import play
from simic.evaluation import learning_rate
from simic.evaluation.baselines import Static
from simic.evaluation.learning_rate import best_learning_rate


@pytest.fixture(scope="module")
def found(bank):
    return best_learning_rate(
        tiny_train(), lambda train: tiny_env(bank, **dict(train)), lambda env: Static(), torch.arange(TASKS), 5
    )


def test_the_best_on_validation_is_chosen(bank, found):
    scores = []
    for rate in (0.02, 0.05, 0.125):  # 0.4, 1 and 2.5 times what the params give
        optimizer = tiny_train().host_optimizer.model_copy(update={"learning_rate": rate})
        env = tiny_env(bank, host_optimizer=optimizer)
        play(env, Static(), 5, lambda *step: None, torch.arange(TASKS))
        scores.append(float(env.state.measured.committed_accuracy.double().mean()))
    assert len(set(scores)) == 3
    assert found.tried == (0.02, 0.05, 0.125) and found.val_accuracy_pct == tuple(scores)
    assert found.learning_rate == found.tried[scores.index(max(scores))]


def test_its_cost_is_every_training_of_every_rate(bank, found):
    assert found.host_trainings == 3 * TASKS
    assert found.training_flops == 3 * TASKS * STEPS * 3 * 64 * tiny_env(bank, hosts=1).host.flops_per_sample


def test_a_rate_that_breaks_hosts_does_not_win(bank, monkeypatch):
    monkeypatch.setattr(learning_rate, "FACTORS", (1e30, 1.0))
    found = best_learning_rate(
        tiny_train(episode_steps=8),
        lambda train: tiny_env(bank, **dict(train)),
        lambda env: Static(),
        torch.arange(TASKS),
        5,
    )
    assert found.learning_rate == 0.05
