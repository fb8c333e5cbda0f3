"""Growth as a task of the training loop: every rollout is one episode of all hosts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic, part_of
from simic.agent.rollout import PartialRollout, Position, Rollout, StepRecord
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.growth.batch.shards import ProcessLost, recovered
from simic.telemetry.columns import GROWTH, STEPS, Columns, EventColumns
from simic.training import episodes, validation
from simic.training.checkpoint import Damaged
from simic.training.episodes import Collector, Tally, step_tensors
from simic.training.partial import PartialCheckpoint
from simic.training.task import Recorded

PARTS = ("rollout/", "env/", "steps/", "tally/")  # what the names of tensors begin with

T = TypeVar("T")


@dataclass
class GrowthTask:
    """Hosts that grow. Nothing goes on from episode to episode."""

    env: GrowthEnv
    layout = GROWTH

    @property
    def at_once(self) -> int:
        """Return how many hosts run at once."""
        return self.env.population.group

    @at_once.setter
    def at_once(self, envs: int) -> None:
        self.env.population.group = envs

    def close(self) -> None:
        self.env.close()

    def length_of(self, iteration: int) -> int:
        return self.env.length_of(iteration)

    def position(self) -> Position | None:
        return None

    def moved(self, end: Position) -> None:
        """Forget it: the next episode begins with a reset."""

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Do nothing: there is no state."""

    def recording(self) -> "RolloutRecorder":
        return RolloutRecorder(self.env, Collector(STEPS), Tally(self.env))

    def events(self, steps: Columns) -> EventColumns:
        return episodes.events(steps)

    def rollbacks(self, episode: Columns) -> int:
        return int(episode["panicked"].sum())

    def validate(self, policy: ActorCritic, normalizers: Normalizers, on_step: Callable[[], None]) -> Columns:
        return validation.validate(self.env, policy, normalizers, on_step)

    def score(self, validated: Columns) -> float:
        return validation.score(validated)

    def recovered(self, work: Callable[[], T], again: Callable[[ProcessLost], None]) -> T:
        return recovered(self.env.population, work, again)


@dataclass(frozen=True)
class RolloutRecorder:
    """Collects the telemetry of one episode of all hosts while it is played; saved and restored between steps."""

    env: GrowthEnv
    collector: Collector
    tally: Tally

    def add(self, transition: StepRecord) -> None:
        """Take in one step."""
        self.collector.add(step_tensors(transition))
        self.tally.add(transition.reward, transition.info)

    @property
    def columns(self) -> list[str]:
        """Return the names of the telemetry of a step, in their order."""
        return list(self.collector.state_dict())

    def tensors(self, reached: PartialRollout) -> dict[str, Tensor]:
        """Return everything that the steps so far have moved, as copies on the CPU."""
        states = reached.state_dict(), self.env.state_dict(), self.collector.state_dict(), self.tally.state_dict()
        moved = {part + name: x for part, state in zip(PARTS, states, strict=True) for name, x in state.items()}
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in moved.items()}

    def resume(
        self, saved: PartialCheckpoint, policy: ActorCritic, normalizers: Normalizers, iteration: int
    ) -> PartialRollout:
        """Go on exactly from there, nothing having been played yet; ``Damaged`` where that was another episode."""
        env, step = self.env, saved.manifest.step
        rollout, episode, steps, tally = (part_of(saved.tensors, part) for part in PARTS)
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
        """Return the steps as they were collected, and the episodes."""
        return Recorded(self.collector.fetched(), self.tally.columns())

    def kept(self, rollout: Rollout) -> dict[str, Tensor]:
        """Return nothing: every episode is a rollout."""
        return {}
