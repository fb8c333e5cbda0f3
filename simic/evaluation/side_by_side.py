"""Several policies in one environment: each plays every host of an episode, in rows of its own.

A host costs about a fifth less in a population of 60 to 120 rows than in one of 10 (docs/history/experiments.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor, Episode, Situation, play, refuse_closed
from simic.envs.records import StepInfo
from simic.evaluation.baselines import Static
from simic.evaluation.grid import ROWS_AT_ONCE, Hosts
from simic.growth.life.vocabulary import Action

T = TypeVar("T")


@dataclass(frozen=True)
class Turn:
    """One step of an episode: what was seen, decided, paid and what came of it."""

    situation: Situation
    action: Action
    reward: Tensor
    info: StepInfo


def of_rows(what: T, rows: slice) -> T:
    """Some rows of every tensor in a record, and in the records within it."""

    def part(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[rows]
        if isinstance(value, Action):
            return Action(*map(part, value))
        if isinstance(value, dict):
            return {name: part(each) for name, each in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{name: part(each) for name, each in vars(value).items()})
        return value

    return part(what)


def at_once(hosts: int, policies: int, rows: int = ROWS_AT_ONCE) -> int:
    """How many of so many policies share a population of about so many ``rows``, so that no population is much smaller
    than the others.
    """
    most = max(1, rows // hosts)
    return -(-policies // -(-policies // most))


class SideBySide:
    """Actors that share an environment: each sees and decides the hosts ``ids [H]`` as if it were alone."""

    def __init__(self, actors: Sequence[Actor], ids: Tensor) -> None:
        self.actors, self.ids = actors, ids

    def rows(self, place: int) -> slice:
        """Those of the actor of that place."""
        return slice(place * len(self.ids), (place + 1) * len(self.ids))

    def start(self, episode: Episode) -> None:
        """An episode of its own for everyone."""
        for actor in self.actors:
            actor.start(replace(episode, env_ids=self.ids))

    def act(self, situation: Situation) -> Action:
        """What each decides, one after another."""
        parts = [actor.act(of_rows(situation, self.rows(place))) for place, actor in enumerate(self.actors)]
        return Action(*(torch.cat(head) for head in zip(*parts, strict=True)))


def play_together(env: GrowthEnv, actors: Sequence[Actor], hosts: Hosts, steps: int | None = None) -> list[Turn]:
    """One episode of every actor on every host, which leaves the environment at its end; rows that are left over never
    grow. SimicError when one needs a choice that ``train.actions`` closes.
    """
    for actor in actors:
        refuse_closed(env, actor)
    ids, parts = hosts.ids.to(env.device), env.num_envs // len(hosts.ids)
    together = SideBySide([*actors, *(Static() for _ in range(parts - len(actors)))], ids)
    turns: list[Turn] = []

    def keep(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        turns.append(Turn(situation, action, reward, info))

    play(env, together, hosts.iteration, keep, hosts.tasks.repeat(parts), ids.repeat(parts), steps)
    return turns
