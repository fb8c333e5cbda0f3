"""Twins differ by their decisions and by nothing else."""

import pytest
import torch

from simic.growth.life.vocabulary import Op

from .transitions import act


def episode(env, actions):
    """Rewards and features ``[T, E, …]`` of one episode under ``actions(step)``."""
    first, _ = env.reset(options={"iteration": 3})
    features, rewards = [first.features], []
    for step in range(env.steps):
        observation, reward, *_ = env.step(actions(step))
        features.append(observation.features)
        rewards.append(reward)
    return torch.stack(features), torch.stack(rewards)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_twins_that_decide_alike_are_the_same_bit_for_bit_and_other_hosts_are_not(make_env, backend):
    env = make_env(envs=6, twins=3, backend=backend, augment="crop_flip")
    features, rewards = episode(env, lambda step: act(6, Op.GERMINATE if step == 0 else Op.WAIT))
    assert env.host_ids.tolist() == [0, 0, 0, 1, 1, 1] and env.env_ids.tolist() == list(range(6))
    for group in ([0, 1, 2], [3, 4, 5]):
        assert (features[:, group] == features[:, group[:1]]).all() and (
            rewards[:, group] == rewards[:, group[:1]]
        ).all()
    assert not torch.equal(features[:, 0], features[:, 3])


def test_a_twin_plays_as_the_host_of_that_name_does_alone(make_env):
    def actions(step):
        return act(2, Op.WAIT)._replace(op=torch.tensor([Op.GERMINATE if step == 0 else Op.WAIT, Op.WAIT]))

    features, rewards = episode(make_env(envs=2, twins=2, env_ids=torch.tensor([4, 5])), actions)
    alone = make_env(envs=2, env_ids=torch.tensor([2, 2]))
    own, paid = episode(alone, actions)
    assert torch.equal(features, own) and torch.equal(rewards, paid)
    assert not torch.equal(features[:, 0], features[:, 1])  # one of them has a seed


def test_twins_have_one_task_and_hosts_may_be_named_for_an_episode(make_env):
    env = make_env(envs=4, twins=2)
    env.reset(options={"iteration": 1, "host_ids": torch.arange(4)})
    assert env.host_ids.tolist() == [0, 1, 2, 3]
    env.reset()
    assert env.host_ids.tolist() == [0, 0, 1, 1]
