"""Policies that learn nothing, and the learned one without sight of its host."""

from dataclasses import replace

import torch
from torch import Tensor

from simic.agent.spec import ActionSpec, Observation
from simic.envs.actions import random_legal, to_action
from simic.envs.play import Actor, Episode, Situation
from simic.growth.life.vocabulary import Action

EMPTY = -1  # the category of an empty slot


class Static:
    """Never grows."""

    def start(self, episode: Episode) -> None: ...

    def act(self, situation: Situation) -> Action:
        return Action.wait(situation.slots.stage.shape[0], situation.slots.stage.device)


class RandomLegal:
    """Uniform over legal ops, then over what the op leaves open; keyed by (rng_seed, iteration, env, step)."""

    def __init__(self, spec: ActionSpec) -> None:
        self.spec = spec

    def start(self, episode: Episode) -> None:
        self.episode = episode

    def act(self, situation: Situation) -> Action:
        noise = self.episode.noise(situation.step, len(self.spec.heads))
        return to_action(random_legal(self.spec, situation.observation, noise))


class Blind:
    """Shows an actor the mean features of all living hosts instead of each host's own: what is left is an open loop.

    Masks stay each host's own, so that every decision is possible. Categories have no mean: all hosts are shown the
    common category of the living ones, or an empty slot where those differ.
    """

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def start(self, episode: Episode) -> None:
        self.actor.start(episode)

    def act(self, situation: Situation) -> Action:
        return self.actor.act(replace(situation, observation=blinded(situation.observation, situation.alive)))


def blinded(seen: Observation, alive: Tensor) -> Observation:
    """Return an observation that is the same for all hosts; masks and what the critic is told stay their own."""
    features = _mean(seen.features, alive).expand_as(seen.features)
    categories = _agreed(seen.categories, alive).expand_as(seen.categories)
    return replace(seen, features=features, categories=categories)


def _mean(features: Tensor, alive: Tensor) -> Tensor:
    """Return the mean over living hosts ``[1, D]``; 0 where none lives."""
    kept = torch.where(alive[:, None], features, 0.0)
    return kept.sum(dim=0, keepdim=True) / alive.sum().clamp(min=1)


def _agreed(categories: Tensor, alive: Tensor) -> Tensor:
    """Return the categories ``[1, C]`` that all living hosts share, EMPTY where they differ."""
    first = categories[alive.int().argmax()]
    agree = ((categories == first) | ~alive[:, None]).all(dim=0)
    return torch.where(agree, first, EMPTY)[None]
