"""A small training keeps the run's kind of learner and shrinks its sizes."""

import pytest
import torch

from simic.certify.small_training import SAMPLES, UNITS, composed, thinned
from simic.data.batches import load_split, read_meta
from simic.data.prepare import prepare
from tests.standard import Instances, Params, Policy, PPOParams, Prepare, Reward, Suite, Train

FEW = Instances(train=6, val=3, held_out=1, held_out_kinds=1)


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """Prepare tasks of a suite, and thin them."""
    folder = tmp_path_factory.mktemp("bank")
    prepare(Prepare(task="suite", suite=Suite(instances=FEW)), 1, folder / "whole", folder)
    return folder / "whole", thinned(folder / "whole", folder / "few")


def test_a_few_tasks_of_each_group_keep_their_first_samples(bank):
    whole, few = bank
    names = [task.name for task in read_meta(whole).tasks]
    assert [task.name for task in read_meta(few).tasks] == [*names[:4], *names[6:8]]
    for split in ("train", "val"):
        before, after = load_split(whole, split), load_split(few, split)
        assert (after.tasks, len(after)) == (6, SAMPLES)
        for place, task in enumerate((0, 1, 2, 3, 6, 7)):
            for kept, all_of_it in ((after.x, before.x), (after.y, before.y)):
                assert torch.equal(kept[place * SAMPLES :][:SAMPLES], all_of_it[task * len(before) :][:SAMPLES])


def test_what_the_learner_is_told_stays_and_its_sizes_shrink(bank):
    ppo = PPOParams(gamma=0.9, minibatches=4, ratio="per_head")
    policy = Policy(core="gru", core_units=200, head_units=8)
    train = Train(envs=60, ppo=ppo, policy=policy, reward=Reward(mode="escrow"), batch_size=64, iterations=99)
    small = composed(Params(rng_seed=7, train=train), bank[1]).train
    assert (small.ppo, small.reward) == (ppo, train.reward)
    assert (small.policy.core, small.policy.core_units, small.policy.head_units) == ("gru", UNITS, 8)
    assert (small.envs, small.iterations) == (8, 3)
    assert small.batch_size == SAMPLES // 2
