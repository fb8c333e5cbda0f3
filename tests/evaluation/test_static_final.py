"""Networks that do not grow are trained exactly as hosts are."""

import math
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny import STEPS, TASKS, tiny_env, tiny_train

from simic.data.batches import load_held_out, load_split
from simic.envs.play import play
from simic.evaluation.baselines import FixedSchedule, Static
from simic.evaluation.static_final import Regime, from_the_start, static_final
from simic.growth.batch.shards import Layout, Shards
from simic.growth.life.vocabulary import Slots, Stage
from simic.params import Lifecycle

ITERATION = 11
EPOCH_FLOPS = 3 * 64  # of 64 training samples, by the FLOPs of one sample: forward and backward
LIFECYCLE = Lifecycle(training_dwell=1, max_seeds=2)


@pytest.fixture(scope="module")
def regime(bank):
    """Scored on the validation split: the test split of a suite's training tasks does not exist."""
    data = (load_split(bank, split) for split in ("train", "val"))
    return Regime(tiny_train(lifecycle=LIFECYCLE), *data, torch.arange(TASKS), ITERATION)


def finished(bank, actor, **more):
    """An environment at the end of an episode, and what it spent on training."""
    env, spent = tiny_env(bank, lifecycle=LIFECYCLE, **more), []
    play(env, actor(env), ITERATION, lambda s, a, r, info: spent.append(info.flops), torch.arange(TASKS))
    return env, torch.stack(spent).sum(dim=0) * EPOCH_FLOPS


def scheduled(env):
    return FixedSchedule("cnn", env.train.lifecycle, (0, 5), "depthwise")


def test_with_nothing_kept_it_is_the_static_host_bit_for_bit(bank, regime):
    env, spent = finished(bank, lambda env: Static())
    regime = replace(regime, train=env.train)
    expected, _ = env.committed(regime.test)
    for networks in static_final(env.population, regime, env.slots, spent, STEPS):
        assert networks.epochs == (STEPS,) * TASKS
        assert networks.test_accuracy_pct == tuple(round(value, 4) for value in expected.double().tolist())
        assert networks.params == (env.host.params,) * TASKS
        assert networks.training_flops == (STEPS * EPOCH_FLOPS * env.host.flops_per_sample,) * TASKS


def test_kept_seeds_are_there_from_the_start_with_the_weights_they_began_with(bank, regime):
    env, _ = finished(bank, lambda env: FixedSchedule("cnn", env.train.lifecycle, (0, 5), "bottleneck"))
    kept = env.slots.stage == Stage.FOSSILIZED
    assert kept.any(dim=1).all()
    slots = from_the_start(env.slots)
    assert torch.equal(slots.blueprint, torch.where(kept, env.slots.blueprint, -1))
    assert (slots.alpha[kept] == 1).all() and (slots.stage[~kept] == Stage.DORMANT).all()
    env.population.reset(ITERATION, torch.arange(TASKS))
    env.population.germinate(env.slots, kept)
    begun = [env.population.named_parameters(env.slots, row) for row in range(TASKS)]
    one = torch.ones(1, TASKS, dtype=torch.int64)
    env.population.learning_rate.zero_()
    regime.run(env.population, slots, one)
    still = [env.population.named_parameters(slots, row) for row in range(TASKS)]
    env.population.learning_rate.fill_(0.05)
    regime.run(env.population, slots, one)
    moved = [env.population.named_parameters(slots, row) for row in range(TASKS)]
    for first, same, other in zip(begun, still, moved, strict=True):
        assert first.keys() == same.keys() and any(name.startswith("joints") for name in first)
        assert all(torch.equal(first[name], same[name]) for name in first)
        assert not any(torch.equal(first[name], other[name]) for name in first if ".seed." in name)


def test_a_pruned_seed_leaves_no_trace(bank, regime):
    """Only what is FOSSILIZED counts: the same slots with another seed in TRAINING give the same networks."""
    env, spent = finished(bank, scheduled)
    both = static_final(env.population, regime, env.slots, spent, STEPS)
    busy = Slots(**env.slots.state_dict())
    free = env.slots.stage == Stage.DORMANT
    busy.stage[free], busy.blueprint[free] = int(Stage.TRAINING), 0
    assert free.any() and static_final(env.population, regime, busy, spent, STEPS) == both


def test_equal_flops_buy_whole_epochs_and_at_least_one(bank, regime):
    env, spent = finished(bank, scheduled)
    of_final = env.host.flops_per_sample + env.population.seed_flops(env.slots).sum(dim=1)
    spent[1], spent[2] = 0, 3 * EPOCH_FLOPS * of_final[2]
    spent[3] = 3 * EPOCH_FLOPS * of_final[3] - 1
    as_long, as_dear = static_final(env.population, regime, env.slots, spent, STEPS)
    assert static_final(env.population, regime, env.slots, spent, 4)[0].epochs == (4,) * TASKS
    # Seeds that came later cost less than seeds from the start: fewer epochs than the episode had.
    assert as_long.epochs == (STEPS,) * TASKS and 10 < as_dear.epochs[0] <= STEPS
    assert as_dear.epochs[1:4] == (1, 3, 2)
    for row in (0, 2):
        assert (
            as_dear.training_flops[row] <= int(spent[row]) < as_dear.training_flops[row] + EPOCH_FLOPS * of_final[row]
        )
    assert as_dear.params == tuple((env.host.params + env.state.seed_params.sum(dim=1)).tolist())


def test_each_row_is_scored_after_its_own_epochs(bank, regime):
    env = tiny_env(bank)
    slots, epochs = Slots.empty(TASKS, env.host.slots), torch.arange(TASKS) + 1
    [together] = regime.run(env.population, slots, epochs[None])
    for row in (0, 3):
        [alone] = regime.run(env.population, slots, torch.full((1, TASKS), row + 1))
        assert alone.test_accuracy_pct[row] == together.test_accuracy_pct[row]


def test_answers_that_are_not_finite_are_wrong(bank, regime):
    env = tiny_env(bank)
    env.population.learning_rate[1] = math.inf
    [found] = regime.run(env.population, Slots.empty(TASKS, 3), torch.full((1, TASKS), 2))
    assert [score > 0 for score in found.test_accuracy_pct] == [True, False, True, True, True, True]


@pytest.mark.slow
def test_shared_out_to_processes_it_is_the_same(bank, regime):
    make = partial(Shards, layout=Layout(TASKS, 3, 2), setup=torch.get_num_threads)
    env, spent = finished(bank, scheduled, compose=make)
    with closing(env) as shared:
        slots = shared.slots
        one = partial(Shards, layout=Layout(TASKS, 3, 1), setup=torch.get_num_threads)
        with closing(tiny_env(bank, lifecycle=LIFECYCLE, compose=one)) as here:
            assert static_final(here.population, regime, slots, spent, STEPS) == static_final(
                shared.population, regime, slots, spent, STEPS
            )


def test_held_out_tasks_are_scored_on_their_test_split(bank):
    held = load_held_out(bank)
    regime = Regime(tiny_train(), held.train, held.test, torch.arange(3), ITERATION)
    env = tiny_env(bank, hosts=3)
    [found] = regime.run(env.population, Slots.empty(3, env.host.slots), torch.full((1, 3), 15))
    # Brightness, of four classes, is what the host alone sees; how dots lie, of two, is not.
    by_kind = {task.kind: score for task, score in zip(held.tasks, found.test_accuracy_pct, strict=True)}
    assert by_kind["brightness"] > 70 > 60 > by_kind["pairs_near"]
