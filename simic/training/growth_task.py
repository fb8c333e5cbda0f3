"""Growth as a task of the training loop: every rollout is one episode of all hosts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.rollout import Rollout, StepRecord
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Situation, play
from simic.envs.records import StepInfo
from simic.growth.life.vocabulary import Action
from simic.telemetry.columns import DECIDED, GROWTH, STEPS, Columns, EventColumns
from simic.training import episodes
from simic.training.episodes import Collector, Tally, step_tensors
from simic.training.learned import LearnedActor
from simic.training.task import RolloutColumns, RolloutRecorder, Task

# A namespace of its own: no training (≤ 10^6) and no evaluation episode (1 << 40).
VALIDATION_ITERATION = 1 << 41


class GrowthTask(Task):
    """Hosts that grow. Nothing goes on from episode to episode."""

    layout = GROWTH
    score_column = "score"

    def __init__(self, env: GrowthEnv) -> None:
        self.env = env

    @property
    def envs_at_once(self) -> int:
        return self.env.population.group

    @envs_at_once.setter
    def envs_at_once(self, envs: int) -> None:
        self.env.population.group = envs

    def steps_of(self, iteration: int) -> int:
        return self.env.length_of(iteration)

    def recorder(self) -> "GrowthRecorder":
        return GrowthRecorder(Collector(STEPS), Tally(self.env))

    def events(self, steps: Columns) -> EventColumns:
        return episodes.events(steps)

    def rollbacks(self, episodes: Columns) -> int:
        return int(episodes["panicked"].sum())

    def validate(
        self, policy: ActorCritic, normalizers: Normalizers, on_step: Callable[[], None]
    ) -> Columns:
        """Play one greedy episode of every host; of a suite on tasks that no update sees, one after another.

        The environment is left at the end of these episodes.

        Args:
            policy: Who decides.
            normalizers: Its scales, which stay as they are.
            on_step: Is called after each step, and may raise.

        Returns:
            The columns of the episodes, and ``DECIDED [E, T, K]``, the index of the choice of every head.
        """
        env = self.env
        # The bank has tasks of training first, then those of validation; a data set alone has one task for both.
        validation_tasks = env.tasks_in_bank - env.train_tasks
        tasks = torch.zeros_like(env.env_ids)
        if validation_tasks:
            tasks = env.train_tasks + env.env_ids % validation_tasks
        # Episodes are added up as those of training are; nothing of them is learned from.
        tally = Tally(env)
        choices = list[Tensor]()

        def add(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
            tally.add(reward, info)
            choices.append(torch.stack(tuple(action), dim=1))
            on_step()

        # Greedy, on the same tasks and of one length: scores of two iterations differ by the policy alone.
        actor = LearnedActor(policy, normalizers, greedy=True)
        play(env, actor, VALIDATION_ITERATION, add, tasks, steps=env.train.middle_episode)
        return tally.columns() | {
            DECIDED: torch.stack(choices, dim=1).to("cpu", torch.int16).numpy()
        }


@dataclass(frozen=True)
class GrowthRecorder(RolloutRecorder):
    """Collects the telemetry of one episode of all hosts."""

    collector: Collector
    tally: Tally

    def add(self, step: StepRecord) -> None:
        self.collector.add(step_tensors(step))
        self.tally.add(step.reward, step.info)

    def columns(self, rollout: Rollout) -> RolloutColumns:
        return RolloutColumns(self.collector.columns(), self.tally.columns())
