"""What is random in a host comes from the name that an episode gives it."""

import pytest
import torch

from simic.growth.life.vocabulary import Op

from .transitions import act


def episode(env, actions, host_ids=None):
    """Rewards and features ``[T, E, …]`` of one episode under ``actions(step)``."""
    first, _ = env.reset(options={"iteration": 3, "host_ids": host_ids})
    features, rewards = [first.features], []
    for step in range(env.steps):
        observation, reward, *_ = env.step(actions(step))
        features.append(observation.features)
        rewards.append(reward)
    return torch.stack(features), torch.stack(rewards)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_hosts_of_one_name_that_decide_alike_are_the_same_bit_for_bit_and_others_are_not(make_env, backend):
    env, names = make_env(envs=6, backend=backend), torch.tensor([0, 0, 0, 1, 1, 1])
    features, rewards = episode(env, lambda step: act(6, Op.GERMINATE if step == 0 else Op.WAIT), names)
    for group in ([0, 1, 2], [3, 4, 5]):
        assert (features[:, group] == features[:, group[:1]]).all()
        assert (rewards[:, group] == rewards[:, group[:1]]).all()
    assert not torch.equal(features[:, 0], features[:, 3])


def test_a_named_host_plays_as_the_environment_of_that_number_does(make_env):
    def actions(step):
        return act(2, Op.WAIT)._replace(op=torch.tensor([Op.GERMINATE if step == 0 else Op.WAIT, Op.WAIT]))

    features, rewards = episode(make_env(envs=2), actions, torch.tensor([2, 2]))
    own, paid = episode(make_env(envs=2, env_ids=torch.tensor([2, 2])), actions)
    assert torch.equal(features, own) and torch.equal(rewards, paid)
    assert not torch.equal(features[:, 0], features[:, 1])  # one of them has a seed
