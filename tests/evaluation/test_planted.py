"""The policy on tasks whose best seed is known: what it did is counted."""

import pytest
import torch
from hand_made import hand_made

from simic.data.synthetic import PLANTED
from simic.evaluation import planted
from simic.training.learned import Learned, describe_specs
from tests.standard import Lifecycle, Train

TASK, TASKS = PLANTED["orientation"], 2
CPU = torch.device("cpu")
# The plant alone is left open.
OPEN = {
    "alpha_target": [1.0],
    "tempo": [3],
    "style": ["linear_add"],
    "slot": [TASK.slot],
    "blueprint": [TASK.blueprint],
}


def train(dwell: int, steps: int) -> Train:
    return Train(episode_steps=steps, lifecycle=Lifecycle(max_seeds=1, training_dwell=dwell), actions=OPEN)


def learned(settings: Train) -> Learned:
    """The hand-made policy as if it had been trained with these settings."""
    env = planted.environment(TASK, settings, 1, CPU)
    specs = env.action_spec, env.observation_spec
    actor = hand_made(*specs)
    return Learned(actor.policy, actor.normalizers, describe_specs(*specs), settings, 1)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(planted, "TASKS", TASKS)


@pytest.mark.parametrize(("dwell", "steps", "kept"), [(3, 30, 1.0), (99, 3, 0.0)], ids=["kept", "never finished"])
def test_what_the_policy_germinated_first_and_what_it_kept_is_counted(dwell, steps, kept):
    assert planted.grade(TASK, learned(train(dwell, steps)), 1, CPU)[:2] == (1.0, kept)


def test_draws_are_tasks_of_their_own():
    env = planted.environment(TASK, train(3, 1), 1, CPU)
    assert env.tasks_in_bank == TASKS and env.validation_data.tasks == TASKS
    first, second, *_ = own = env.training_data.x.chunk(TASKS)
    assert not torch.equal(first, second)
    other = planted.environment(TASK, train(3, 1), 1 + TASKS, CPU).training_data.x
    assert not any(torch.equal(mine, theirs) for mine in own for theirs in other.chunk(TASKS))
