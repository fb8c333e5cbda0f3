"""The draws of an episode's decisions."""

from dataclasses import replace

import pytest
import torch

from simic.envs.play import Episode, play
from simic.growth.life.vocabulary import Action

EPISODE = Episode(torch.arange(3), iteration=4, rng_seed=1, steps=4)


def test_every_step_is_told_with_what_was_decided_and_what_came_of_it(make_env):
    env, told = make_env(envs=2, steps=3), []

    class Waits:
        def start(self, episode):
            assert (episode.iteration, episode.rng_seed) == (5, env.rng_seed)

        def act(self, situation):
            return Action.wait(2)

    play(env, Waits(), 5, lambda *step: told.append(step))
    assert [situation.step for situation, *_ in told] == [0, 1, 2]
    assert all(not action.op.any() and reward.shape == (2,) for _, action, reward, _ in told)
    assert torch.equal(told[-1][3].live_accuracy, env.state.measured.accuracy)


@pytest.mark.parametrize("changed", [{"rng_seed": 2}, {"iteration": 5}, {"env_ids": torch.arange(3, 6)}])
def test_noise_is_another_for_every_key_and_the_same_in_any_company(changed):
    noise = EPISODE.noise(0, heads=8)
    assert noise.shape == (3, 8) and noise.unique().numel() == 24
    assert not torch.equal(EPISODE.noise(1, 8), noise) and not torch.equal(
        replace(EPISODE, **changed).noise(0, 8), noise
    )
    assert torch.equal(replace(EPISODE, env_ids=torch.tensor([2])).noise(0, 8), noise[2:])
