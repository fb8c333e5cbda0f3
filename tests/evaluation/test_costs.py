"""What hosts cost, counted by hand."""

import pytest
from tiny import STEPS, tiny_env, tiny_train

from simic.envs.play import play
from simic.evaluation.costs import Meter, epoch_samples
from simic.evaluation.schedules import NONE, OpenLoop, Schedule

SEED = 1  # a blueprint


@pytest.mark.parametrize(("asked", "samples"), [("all", 96), (2, 64), (1, 32)])
def test_an_epoch_has_the_whole_batches_that_were_asked_for(asked, samples):
    assert epoch_samples(tiny_train(batches_per_epoch=asked), 100) == samples


def test_a_seed_costs_from_its_germination_on_and_training_three_passes_of_each_sample(bank):
    env, germinates = tiny_env(bank, hosts=2), 5
    meter = Meter.of(env, 2)
    actor = OpenLoop([Schedule((NONE,) * 3), Schedule((NONE, SEED, NONE), germinates)])
    play(env, actor, 3, lambda situation, action, reward, info: meter.add(info))
    bare, seed = env.host.flops_per_sample, env.blueprints[SEED].flops(env.host.slot_shapes[1])
    assert seed > 0 and env.population.seed_flops(env.slots)[1].tolist() == [0, seed, 0]
    # In FLOPs of one sample's forward pass, of every step of the episode.
    passes = [STEPS * bare, STEPS * bare + (STEPS - germinates) * seed]
    assert meter.training.tolist() == [3 * 64 * each for each in passes]
    # All 2³ ways to switch three slots, of every validation sample.
    assert meter.validation.tolist() == [8 * len(env.validation_data) * each for each in passes]
