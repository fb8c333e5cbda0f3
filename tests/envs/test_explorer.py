"""The explorer tries what it is told in that order and keeps what it is told, as often as there is time for."""

import torch

from simic.envs.explorer import Explorer, Tries
from simic.growth.life.vocabulary import Op, Stage
from simic.params import Lifecycle
from tests.evaluation.scripted import MANUAL, World, episode

ORDER = torch.tensor([[0, 3], [2, 2], [1, 3]])
ONE_SEED = Lifecycle(max_seeds=1, embargo_steps=0)


def played(keep, lifecycle=ONE_SEED, steps=40):
    """The ops of every host and step ``[T, E]``, and the world as it ends."""
    envs = len(keep)
    world = World(envs=envs, lifecycle=lifecycle)
    actor = Explorer(lifecycle, steps, ORDER.expand(envs, -1, -1), torch.tensor(keep))
    actor.start(episode(world))
    ops = []
    for step in range(steps):
        action = actor.act(world.situation(step))
        ops.append(action.op)
        world.step(action, step)
    return torch.stack(ops), world


def test_tries_are_what_the_lifecycle_leaves_time_for():
    lifecycle = Lifecycle(min_prune_age=8, training_dwell=3, embargo_steps=0, reset_steps=1)
    assert Tries.of(lifecycle, 40) == Tries(age=8, starts=(0, 12, 24))
    assert Tries.of(lifecycle, 20) == Tries(age=8, starts=(0,))
    assert Tries.of(lifecycle, 21).starts == (0, 12)
    assert Tries.of(lifecycle, 4).starts == (0,)
    assert Tries.of(lifecycle, 400) == Tries(age=116, starts=(0, 120, 240))
    at_once = lifecycle.model_copy(update={"sequential_development": False})
    assert Tries.of(at_once, 40) == Tries(age=11, starts=(0, 12, 24))


def test_every_try_begins_when_the_timetable_says_and_the_one_to_keep_is_the_last():
    ops, world = played([0, 1, 2])
    begun = [(ops[:, host] == Op.GERMINATE).nonzero().flatten().tolist() for host in range(3)]
    assert begun == [[0], [0, 12], [0, 12, 24]]
    assert [(ops[:, host] == Op.PRUNE).nonzero().flatten().tolist() for host in range(3)] == [[], [8], [8, 20]]
    live = (world.slots.stage == Stage.FOSSILIZED) | (world.slots.stage == Stage.HOLDING)
    assert [live[host].nonzero().flatten().tolist() for host in range(3)] == [[0], [2], [1]]


def test_it_keeps_nothing_that_does_not_help_and_asks_for_nothing_illegal():
    ops, world = played([0, 1, 2] * 20, lifecycle=MANUAL)
    assert (ops == Op.FOSSILIZE).any()
    kept = world.slots.stage == Stage.FOSSILIZED
    assert kept.sum() == (ops == Op.FOSSILIZE).sum()  # no gate refused one
