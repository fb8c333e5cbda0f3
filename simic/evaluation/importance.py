"""Which signals decide: the learned policy, greedy, with one group of observations permuted among the hosts.

What is seen of a group is then another host's, with its spread and its course over the episode, and what was decided
by it is decided wrongly: permutation importance (Breiman 2001, Fisher et al. 2019, arXiv 1801.01489).
"""

from dataclasses import replace

import torch

from simic import rng
from simic.agent.spec import Observation
from simic.envs.observations import columns
from simic.envs.play import Actor, Episode, Situation
from simic.growth.life.vocabulary import Action
from simic.rng import Purpose

STAGES = "stages"
# Groups of observations by their sources in the table of observations; which blueprint a slot holds goes with the
# stages. All hosts are at the same step, so of the time it is the ages of seeds that differ.
GROUPS: dict[str, tuple[str, ...]] = {
    "accuracy and loss": (
        "tracker", "tracker.losses", "tracker.accuracies", "tracker.plateau", "tracker.stabilised", "train epoch",
    ),
    "contribution": ("attribution", "trials"),
    "progress": ("slots.accuracy",),
    "gradients": ("gradients",),
    STAGES: (
        "slots", "slots.stage", "slots.blueprint", "slots.ramp", "slots.operator", "slots.alpha", "slots.alpha_target",
        "slots.first_target", "slots.tempo_steps", "slots.ramp_*", "slots.germinations",
    ),
    "time": ("step", "slots.age", "slots.dwell"),
    "last decision": ("gate events", "effective op"),
    "size": ("population",),
}  # fmt: skip


class Permuted:
    """Shows an actor one group of every host's observations as those of another host, the same one throughout an
    episode. Masks stay each host's own, so that every decision is possible.
    """

    def __init__(self, actor: Actor, group: str, slots: int, blueprints: int) -> None:
        self.actor, self.key = actor, list(GROUPS).index(group)
        self.columns = torch.tensor([row.source in GROUPS[group] for _, row in columns(slots, blueprints)])
        self.categories = group == STAGES

    def start(self, episode: Episode) -> None:
        """Draw whose observations each host gets: all hosts in one circle, so that nobody keeps its own."""
        self.actor.start(episode)
        device = episode.env_ids.device
        stream = rng.key(episode.rng_seed, Purpose.PERMUTED, episode.iteration, self.key, device=device)
        circle = rng.permutation(stream, len(episode.env_ids))
        self.source = torch.empty_like(circle)
        self.source[circle] = circle.roll(1)
        self.columns = self.columns.to(device)

    def act(self, situation: Situation) -> Action:
        """What the actor decides on what it is shown."""
        seen = situation.observation
        features = torch.where(self.columns, seen.features[self.source], seen.features)
        categories = seen.categories[self.source] if self.categories else seen.categories
        return self.actor.act(replace(situation, observation=Observation(features, categories, seen.masks)))
