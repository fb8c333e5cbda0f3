"""The interface between the training loop and what is trained on: growth, or Gymnasium environments."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.rollout import PartialRollout, Position, Rollout, StepRecord
from simic.telemetry.columns import Columns, EventColumns, TableLayout
from simic.telemetry.rows import FindingRow
from simic.training.checkpoint import PartialCheckpoint

T = TypeVar("T")


@dataclass(frozen=True)
class Recorded:
    """The record of one rollout: its steps ``[T, E]`` and the episodes ``[E]``."""

    steps: Columns
    episode: Columns


class Recording(ABC):
    """The telemetry of one rollout while it is played; saved and restored between steps."""

    @property
    def columns(self) -> list[str]:
        """Return the names of what is kept of a step, in their order."""
        return []

    @abstractmethod
    def add(self, transition: StepRecord) -> None:
        """Take in one step."""

    @abstractmethod
    def tensors(self, reached: PartialRollout) -> dict[str, Tensor]:
        """Return everything that the steps so far have moved, as copies on the CPU."""

    @abstractmethod
    def resume(
        self, saved: PartialCheckpoint, policy: ActorCritic, normalizers: Normalizers, iteration: int
    ) -> PartialRollout:
        """Go on exactly from there, nothing having been played yet; ``Damaged`` where that was another rollout."""

    @abstractmethod
    def recorded(self, rollout: Rollout) -> Recorded:
        """Return the columns of the finished rollout."""

    def kept(self, rollout: Rollout) -> dict[str, Tensor]:
        """Return what an iteration that is kept whole needs beside what every rollout has, ``[T, E, …]``."""
        return {}


class Task(ABC):
    """What the loop asks for: an environment, where its rollouts begin, what is recorded, how it is validated."""

    env: Any  # agent.rollout.Environment, which has the agent's specs, ``masked`` and ``close`` as well
    layout: ClassVar[TableLayout]  # of the telemetry
    scored: ClassVar[str]  # the column of validation episodes whose mean chooses the best checkpoint

    @property
    def at_once(self) -> int:
        """Return how many environments run at once; fewer than all where the memory did not suffice."""
        return self.env.num_envs

    @at_once.setter  # noqa: B027 - by default all run at once
    def at_once(self, envs: int) -> None:
        """Run no more at once, where that can be chosen."""

    @abstractmethod
    def length_of(self, iteration: int) -> int:
        """Return the number of steps of a rollout."""

    def position(self) -> Position | None:
        """Return where the next rollout goes on; None: it begins with a reset."""
        return None

    def moved(self, end: Position) -> None:  # noqa: B027 - nothing to note where rollouts begin with a reset
        """Note where a rollout ended."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return what goes on from rollout to rollout, as it was between the last two."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> FindingRow | None:
        """Go on from there; a finding where that is not exact."""
        return None

    @abstractmethod
    def recording(self) -> Recording:
        """Return the recording of a rollout before its first step."""

    @abstractmethod
    def events(self, steps: Columns) -> EventColumns:
        """List what happened in the steps."""

    def rollbacks(self, episode: Columns) -> int:
        """Count the episodes that ended broken."""
        return 0

    @abstractmethod
    def validate(self, policy: ActorCritic, normalizers: Normalizers, on_step: Callable[[], None]) -> Columns:
        """Play the episodes that choose the best checkpoint: greedy, always the same ones, seen by no update.

        ``on_step`` is called after each step and may raise; scales stay as they are. Beside the columns of the episodes
        it returns ``DECIDED``, what was decided.
        """

    def score(self, validated: Columns) -> float:
        """Return the score of these episodes."""
        scores = validated[self.scored].tolist()
        return sum(scores) / len(scores)

    def recovered(self, work: Callable[[], T], again: Callable[[Exception], None]) -> T:
        """Do the work, again where a process was lost, of which ``again`` is told."""
        return work()
