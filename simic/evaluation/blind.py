"""The learned policy without sight of its host: what is left of it is an open loop."""

from dataclasses import replace

import torch
from torch import Tensor

from simic.agent.spec import Observation
from simic.envs.play import Actor, Episode, Situation
from simic.growth.life.vocabulary import Action

EMPTY = -1  # of a category: none


class Blind:
    """Shows an actor that decides by its observations the mean of all living hosts' features instead of each host's.

    Masks stay each host's own, so that every decision is possible. Categories have no mean: all hosts are shown the
    first's where the living ones agree, and an empty slot where they do not.
    """

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def start(self, episode: Episode) -> None:
        """As the actor does."""
        self.actor.start(episode)

    def act(self, situation: Situation) -> Action:
        """What the actor decides on the mean."""
        seen = situation.observation
        features = _mean(seen.features, situation.alive).expand_as(seen.features)
        categories = _agreed(seen.categories, situation.alive).expand_as(seen.categories)
        return self.actor.act(replace(situation, observation=Observation(features, categories, seen.masks)))


def _mean(features: Tensor, alive: Tensor) -> Tensor:
    """Over the living hosts, ``[1, D]``; 0 where none lives, and nobody asks."""
    kept = torch.where(alive[:, None], features, 0.0)
    return kept.sum(dim=0, keepdim=True) / alive.sum().clamp(min=1)


def _agreed(categories: Tensor, alive: Tensor) -> Tensor:
    """What all living hosts have, ``[1, C]``."""
    first = categories[alive.int().argmax()]
    agree = ((categories == first) | ~alive[:, None]).all(dim=0)
    return torch.where(agree, first, EMPTY)[None]
