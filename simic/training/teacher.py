"""The explorer in the policy's place: what it decides, as the agent's rollout asks for it."""

from collections.abc import Callable

import torch
from torch import Tensor

from simic.agent.spec import Observation
from simic.envs.explorer import Explorer
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Episode, Situation, refuse_closed


def explorer(env: GrowthEnv, iteration: int) -> Callable[[int, Observation], Tensor]:
    """Of one episode of all hosts: from step and observation to actions ``[E, heads]``."""
    actor = Explorer(env.train.lifecycle, env.steps, env.openings.cpu(), env.train.host.family)
    refuse_closed(env, actor)
    actor.start(Episode(env.env_ids, iteration, env.rng_seed))

    def decide(step: int, observation: Observation) -> Tensor:
        action = actor.act(Situation(observation, env.slots, env.state.tracker, env.state.alive, step))
        return torch.stack(tuple(action), dim=1)

    return decide
