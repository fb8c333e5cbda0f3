"""Validation episodes: always the same ones, greedy, seen by no update; their score chooses the best checkpoint.

Of a suite they are of tasks that no update sees either, one after another.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Situation, play
from simic.envs.records import StepInfo
from simic.growth.life.vocabulary import Action
from simic.telemetry.columns import DECIDED, Columns
from simic.training.episodes import Tally
from simic.training.learned import LearnedActor

VALIDATION_ITERATION = 1 << 41  # a namespace of its own: no training (≤ 10^6) and no evaluation episode (1 << 40)


def validate(env: GrowthEnv, policy: ActorCritic, normalizers: Normalizers, on_step: Callable[[], None]) -> Columns:
    """Play one greedy episode of every host; ``on_step`` is called after each step and may raise. Normalisers stay as
    they are. The environment is left at the end of these episodes. Beside the columns of the episodes it returns
    ``DECIDED [E, T, K]``, the index of the choice of every head.
    """
    others = env.tasks_in_bank - env.train_tasks
    tasks = env.train_tasks + env.env_ids % others if others else torch.zeros_like(env.env_ids)
    tally, decided = Tally(env), list[Tensor]()

    def add(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        tally.add(reward, info)
        decided.append(torch.stack(tuple(action), dim=1))
        on_step()

    actor = LearnedActor(policy, normalizers, greedy=True)
    play(env, actor, VALIDATION_ITERATION, add, tasks, steps=env.train.middle_episode)
    return tally.columns() | {DECIDED: torch.stack(decided, dim=1).to("cpu", torch.int16).numpy()}


def score(episode: Columns) -> float:
    """Return the mean score on validation data in points: of host and FOSSILIZED seeds alone, which are kept."""
    scores = episode["score"].tolist()
    return sum(scores) / len(scores)
