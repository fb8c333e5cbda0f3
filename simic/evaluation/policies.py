"""Make the policies of an evaluation by name: the trained one, greedy, sampled and blind, and the baselines."""

from collections.abc import Callable

from simic.envs.actions import action_spec
from simic.envs.growth_env import GrowthEnv
from simic.envs.observations import observation_spec
from simic.envs.patient import Patient, tries
from simic.envs.play import Actor
from simic.errors import SimicError
from simic.evaluation.baselines import Blind, RandomLegal, Static
from simic.evaluation.endpoints import PATIENT, TUNED
from simic.evaluation.result import BLIND, SAMPLED
from simic.evaluation.rules import published_for, tuned_actor
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import HostSpec
from simic.params import Params
from simic.training.learned import Learned

RANDOM = "random_legal"


def _tuned(env: GrowthEnv) -> Actor:
    """Return the published rule for hosts of this family, whatever the data; SimicError where there is none."""
    tuned = published_for(env.host.family)
    if tuned is None:
        raise SimicError(f"policy {TUNED}: no rule is tuned for hosts of family {env.host.family}; choose another")
    return tuned_actor(env, tuned)


BASELINES: dict[str, Callable[[GrowthEnv], Actor]] = {
    "static": lambda env: Static(),
    RANDOM: lambda env: RandomLegal(env.action_spec),
    PATIENT: lambda env: Patient(env.train.lifecycle, tries(env.host.family, env.host.slots)),
    TUNED: _tuned,
}


def actors(params: Params, env: GrowthEnv, learned: Learned) -> dict[str, Actor]:
    """Return the policies that ``evaluate.policies`` names, in that order. SimicError when the trained one is for other
    observations or actions.
    """
    refuse_other_host(learned, env.host)
    named = {name: learned.actor(greedy=name != SAMPLED) for name in params.evaluate.policies}
    return {name: Blind(actor) if name == BLIND else actor for name, actor in named.items()}


def refuse_other_host(learned: Learned, host: HostSpec) -> None:
    """Raise SimicError when the policy was trained for other observations, actions or blueprints than the host's."""
    kinds, trained = blueprints_of(host.family), learned.train.host
    specs = observation_spec(host.slots, len(kinds)), action_spec(host.slots, len(kinds))
    policy = learned.policy
    if (policy.observation_spec.of_actor, policy.action_spec) == specs and kinds == blueprints_of(trained.family):
        return
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
