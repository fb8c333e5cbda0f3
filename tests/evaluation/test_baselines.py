"""A blind policy is an open loop: nothing of a host but its masks reaches it."""

from dataclasses import replace

import torch
from tiny import tiny_env, untrained

from simic.envs.play import play
from simic.evaluation.policies import EMPTY, Blind


class Watcher:
    """Keeps what it is shown."""

    def act(self, situation):
        self.seen = situation.observation


def test_what_is_shown_is_the_mean_of_the_living_and_the_masks_are_each_hosts_own(bank):
    env, situations = tiny_env(bank, hosts=4), []
    play(env, untrained(env, greedy=False), 0, lambda s, a, r, i: situations.append(s), torch.arange(4))
    situation = situations[-1]
    categories = torch.tensor([[2, 5, -1], [2, 3, -1], [2, 5, -1], [0, 5, -1]])
    features = situation.observation.features.clone()
    features[3] = torch.nan
    given = replace(situation.observation, categories=categories, features=features)
    watcher = Watcher()
    Blind(watcher).act(replace(situation, observation=given, alive=torch.tensor([True, True, True, False])))
    # Over three living hosts; they agree on slots 0 and 2, and on slot 1 they do not.
    assert torch.allclose(watcher.seen.features, features[:3].mean(0).expand(4, -1), atol=1e-6)
    assert watcher.seen.categories.tolist() == [[2, EMPTY, -1]] * 4
    assert watcher.seen.masks is given.masks
