"""The policy on tasks whose best seed is known: counted by hand, and found best by replays of the other openings."""

from dataclasses import replace

import pytest
import torch
from hand_made import hand_made

from simic.data.synthetic import PLANTED
from simic.evaluation import planted
from simic.params import Host
from simic.training.learned import Learned, describe_specs
from tests.standard import Lifecycle, Train

TASK, TASKS = PLANTED["orientation"], 2
CPU = torch.device("cpu")
OPEN = {"alpha_target": [1.0], "tempo": [3], "style": ["linear_add"]}


def train(**changes):
    lifecycle = Lifecycle(max_seeds=1)
    return Train(**({"episode_steps": 30, "lifecycle": lifecycle, "actions": OPEN} | changes))


def learned(settings):
    """The hand-made policy as if it had been trained with these settings."""
    env = planted.environment(TASK, settings, 1, CPU)
    actor, specs = (
        hand_made(env.action_spec, env.observation_spec),
        describe_specs(env.action_spec, env.observation_spec),
    )
    return Learned(actor.policy, actor.normalizers, specs, settings, 1)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(planted, "TASKS", TASKS)


def test_what_the_policy_germinated_first_and_what_it_kept_is_counted():
    """With the plant alone left open it is the first and the last; with a longer training it is never finished."""
    only = train(actions=OPEN | {"slot": [TASK.slot], "blueprint": [TASK.blueprint]})
    found = planted.grade(learned(only), 1, CPU)
    assert found is not None and (found.task, found.slot, found.blueprint) == ("orientation", 0, "depthwise")
    assert (found.first, found.kept, found.openings, found.tasks) == (1.0, 1.0, 1, TASKS)
    never = only.model_copy(update={"lifecycle": Lifecycle(max_seeds=1, training_dwell=99), "episode_steps": 3})
    unfinished = planted.grade(learned(never), 1, CPU)
    assert unfinished is not None and (unfinished.first, unfinished.kept) == (1.0, 0.0)
    assert planted.grade(learned(never), 1, CPU) == unfinished


def test_draws_are_tasks_of_their_own():
    env = planted.environment(TASK, train(episode_steps=1), 1, CPU)
    assert env.tasks_in_bank == TASKS and env.validation_data.tasks == TASKS
    first, second, *_ = own = env.training_data.x.chunk(TASKS)
    assert not torch.equal(first, second)
    other = planted.environment(TASK, train(episode_steps=1), 1 + TASKS, CPU).training_data.x
    assert not any(torch.equal(mine, theirs) for mine in own for theirs in other.chunk(TASKS))


def test_what_cannot_take_the_plant_is_not_graded():
    """It is closed by the settings, or the policy is for other hosts."""
    assert planted.grade(learned(train(actions={"blueprint": ["norm"]})), 1, CPU) is None
    found = learned(train())
    other = found.train.model_copy(update={"host": Host(family="mlp", preset="baseline")})
    assert planted.grade(replace(found, train=other), 1, CPU) is None
