"""The explorer in the policy's place: what it decides, as the agent's rollout asks for it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from simic.agent.spec import Observation
from simic.envs.explorer import Explorer
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Episode, Situation, refuse_closed


@dataclass(frozen=True)
class Teacher:
    """Of one episode of all hosts: from step and observation to actions ``[E, heads]``."""

    env: GrowthEnv
    explorer: Explorer

    def __call__(self, step: int, observation: Observation) -> Tensor:
        env = self.env
        action = self.explorer.act(Situation(observation, env.slots, env.state.tracker, env.state.alive, step))
        return torch.stack(tuple(action), dim=1)


def surveyor(env: GrowthEnv, iteration: int) -> Teacher:
    """Every environment keeps one opening; those whose ids follow each other try all of them."""
    openings = env.openings.nonzero()
    order = openings[env.env_ids % len(openings)][:, None]
    return _explorer(env, iteration, order, torch.zeros_like(env.env_ids))


def guide(env: GrowthEnv, iteration: int, sequence: Tensor) -> Teacher:
    """Of a group of twins the first keeps the first opening of the ``sequence [tries, 2]``, the next one the second,
    and so on.
    """
    order = sequence.to(env.device).expand(env.num_envs, -1, -1)
    return _explorer(env, iteration, order, env.env_ids % env.twins % len(sequence))


def _explorer(env: GrowthEnv, iteration: int, order: Tensor, keep: Tensor) -> Teacher:
    actor = Explorer(env.train.lifecycle, env.steps, order, keep)
    refuse_closed(env, actor)
    actor.start(Episode(env.env_ids, iteration, env.rng_seed, env.steps))
    return Teacher(env, actor)
