"""Growth as a task of the training loop: every rollout is one episode of all hosts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic, part_of
from simic.agent.rollout import PartialRollout, Position, Rollout, StepRecord
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Situation, play
from simic.envs.records import StepInfo
from simic.errors import SimicError
from simic.growth.batch.shards import ProcessLost, recovered
from simic.growth.life.vocabulary import Action
from simic.telemetry.columns import DECIDED, GROWTH, STEPS, Columns, EventColumns
from simic.training import episodes
from simic.training.checkpoint import Damaged, PartialCheckpoint, cpu_copies
from simic.training.episodes import Collector, Tally, step_tensors
from simic.training.learned import LearnedActor
from simic.training.task import Recorded, Recording, Task

VALIDATION_ITERATION = 1 << 41  # a namespace of its own: no training (≤ 10^6) and no evaluation episode (1 << 40)
PARTS = ("rollout", "env", "steps", "tally")  # what the names of tensors begin with

T = TypeVar("T")


class GrowthTask(Task):
    """Hosts that grow. Nothing goes on from episode to episode."""

    layout, scored = GROWTH, "score"

    def __init__(self, env: GrowthEnv) -> None:
        self.env = env

    @property
    def at_once(self) -> int:
        return self.env.population.group

    @at_once.setter
    def at_once(self, envs: int) -> None:
        self.env.population.group = envs

    def length_of(self, iteration: int) -> int:
        return self.env.length_of(iteration)

    def recording(self) -> "RolloutRecorder":
        return RolloutRecorder(self.env, Collector(STEPS), Tally(self.env))

    def events(self, steps: Columns) -> EventColumns:
        return episodes.events(steps)

    def rollbacks(self, episode: Columns) -> int:
        return int(episode["panicked"].sum())

    def validate(self, policy: ActorCritic, normalizers: Normalizers, on_step: Callable[[], None]) -> Columns:
        """Play one greedy episode of every host; of a suite on tasks that no update sees, one after another.

        ``DECIDED [E, T, K]`` is the index of the choice of every head. The environment is left at the end of these
        episodes.
        """
        env = self.env
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

    def recovered(self, work: Callable[[], T], again: Callable[[Exception], None]) -> T:
        return recovered(self.env.population, work, again)


@dataclass(frozen=True)
class RolloutRecorder(Recording):
    """Collects the telemetry of one episode of all hosts."""

    env: GrowthEnv
    collector: Collector
    tally: Tally

    @property
    def columns(self) -> list[str]:
        return list(self.collector.state_dict())

    def add(self, transition: StepRecord) -> None:
        self.collector.add(step_tensors(transition))
        self.tally.add(transition.reward, transition.info)

    def tensors(self, reached: PartialRollout) -> dict[str, Tensor]:
        states = [moved.state_dict() for moved in (reached, self.env, self.collector, self.tally)]
        return cpu_copies(dict(zip(PARTS, states, strict=True)))

    def resume(
        self, saved: PartialCheckpoint, policy: ActorCritic, normalizers: Normalizers, iteration: int
    ) -> PartialRollout:
        env, step = self.env, saved.manifest.step
        rollout, episode, steps, tally = (part_of(saved.tensors, f"{part}/") for part in PARTS)
        observation, _ = env.reset(options={"iteration": iteration})
        try:
            position = Position.first(env, policy, observation)
            begun = PartialRollout.begun(position, env.steps, env.env_ids, policy, normalizers)
            reached = begun.resumed(rollout, step, env.load_state_dict(episode))
            for t in range(step):
                self.collector.add({name: steps[name][t] for name in saved.manifest.columns})
            self.tally.load_state_dict(tally)
        except ProcessLost:
            raise
        except (SimicError, ValueError, KeyError, IndexError) as error:
            raise Damaged(f"{saved.path}: does not fit this run: {error}") from None
        return reached

    def recorded(self, rollout: Rollout) -> Recorded:
        return Recorded(self.collector.fetched(), self.tally.columns())
