"""Make the policies of an evaluation by name: the trained one, greedy, sampled and blind, and the baselines."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from simic.agent.spec import ActionSpec, Observation
from simic.envs.actions import action_spec, random_legal, to_action
from simic.envs.growth_env import GrowthEnv
from simic.envs.observations import observation_spec
from simic.envs.patient import Patient, tries
from simic.envs.play import Actor, Episode, Situation
from simic.errors import SimicError
from simic.evaluation.endpoints import PATIENT, TUNED
from simic.evaluation.result import BLIND, SAMPLED
from simic.evaluation.rules import published_for, tuned_actor
from simic.growth.life.vocabulary import Action
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import HostSpec
from simic.params import Params
from simic.training.learned import Learned

# The category of an empty slot.
EMPTY = -1
RANDOM = "random_legal"


class Static:
    """Never grow."""

    def start(self, episode: Episode) -> None: ...

    def act(self, situation: Situation) -> Action:
        return Action.wait(situation.slots.stage.shape[0], situation.slots.stage.device)


class RandomLegal:
    """Choose uniformly among legal ops, then among what the op leaves open; the draw is a hash of host and step."""

    def __init__(self, spec: ActionSpec) -> None:
        self.spec = spec

    def start(self, episode: Episode) -> None:
        self.episode = episode

    def act(self, situation: Situation) -> Action:
        noise = self.episode.noise(situation.step, len(self.spec.heads))
        return to_action(random_legal(self.spec, situation.observation, noise))


class Blind:
    """Show an actor the mean features of all living hosts in place of those of a host: it becomes an open loop.

    Masks stay as they are, so that every decision is possible. Categories have no mean: all hosts are shown the common
    category of the living ones, or an empty slot where those differ.
    """

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def start(self, episode: Episode) -> None:
        self.actor.start(episode)

    def act(self, situation: Situation) -> Action:
        return self.actor.act(
            replace(situation, observation=blinded(situation.observation, situation.alive))
        )


def blinded(observation: Observation, alive: Tensor) -> Observation:
    """Make features and categories the same for all hosts; masks and privileged columns stay as they are."""
    features = observation.features
    categories = observation.categories
    total = torch.where(alive[:, None], features, 0.0).sum(dim=0)
    mean = total / alive.sum().clamp(min=1)
    # Where living hosts agree on a category it stays.
    first_living = categories[alive.int().argmax()]
    agree = ((categories == first_living) | ~alive[:, None]).all(dim=0)
    common = torch.where(agree, first_living, EMPTY)
    return replace(
        observation, features=mean.expand_as(features), categories=common.expand_as(categories)
    )


def _tuned(env: GrowthEnv) -> Actor:
    """Play the published rule for hosts of this family, whatever the data; SimicError where there is none."""
    tuned = published_for(env.host.family)
    if tuned is None:
        raise SimicError(
            f"policy {TUNED}: no rule is tuned for hosts of family {env.host.family}; choose another"
        )
    return tuned_actor(env, tuned)


BASELINES: dict[str, Callable[[GrowthEnv], Actor]] = {
    "static": lambda env: Static(),
    RANDOM: lambda env: RandomLegal(env.action_spec),
    PATIENT: lambda env: Patient(env.train.lifecycle, tries(env.host.family, env.host.slots)),
    TUNED: _tuned,
}


def actors(params: Params, env: GrowthEnv, learned: Learned) -> dict[str, Actor]:
    """Make the policies that ``evaluate.policies`` names, in that order.

    Args:
        params: those of the run.
        env: where they play.
        learned: the trained policy.

    Raises:
        SimicError: the trained policy is for other observations or actions.
    """
    # The same weights play in all ways; only the sampled one draws its actions.
    refuse_other_host(learned, env.host)
    players: dict[str, Actor] = {}
    for name in params.evaluate.policies:
        actor = learned.actor(greedy=name != SAMPLED)
        players[name] = Blind(actor) if name == BLIND else actor
    return players


def refuse_other_host(learned: Learned, host: HostSpec) -> None:
    """Raise SimicError when the policy was trained for other observations, actions or blueprints than the host's."""
    # Weights fit where observations and actions have the same form, and mean the same where blueprints are the same.
    kinds = blueprints_of(host.family)
    trained = learned.train.host
    specs = observation_spec(host.slots, len(kinds)), action_spec(host.slots, len(kinds))
    policy = learned.policy
    if (policy.observation_spec.of_actor, policy.action_spec) == specs and kinds == blueprints_of(
        trained.family
    ):
        return
    # Both are described by what decides, so that the difference can be read off.
    described = [
        f"{family}/{preset}, {spec.categories} slots, {spec.cardinality} blueprints, observations v{spec.version}"
        for family, preset, spec in (
            (trained.family, trained.preset, policy.observation_spec),
            (host.family, host.preset, specs[0]),
        )
    ]
    raise SimicError(
        f"the policy after {learned.iteration} iterations was trained on {described[0]}; this is {described[1]}: "
        "take a host it was trained on, or another policy (a baseline fits any)"
    )
