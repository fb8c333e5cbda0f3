"""The draws of an episode's decisions."""

from dataclasses import replace

import pytest
import torch

from simic.envs.play import Episode

EPISODE = Episode(torch.arange(3), iteration=4, rng_seed=1, steps=4)


@pytest.mark.parametrize("changed", [{"rng_seed": 2}, {"iteration": 5}, {"env_ids": torch.arange(3, 6)}])
def test_noise_is_another_for_every_key_and_the_same_in_any_company(changed):
    noise = EPISODE.noise(0, heads=8)
    assert noise.shape == (3, 8) and noise.unique().numel() == 24
    assert not torch.equal(EPISODE.noise(1, 8), noise) and not torch.equal(
        replace(EPISODE, **changed).noise(0, 8), noise
    )
    assert torch.equal(replace(EPISODE, env_ids=torch.tensor([2])).noise(0, 8), noise[2:])
