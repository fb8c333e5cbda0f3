"""The interface between the training loop and what is trained on: growth, or Gymnasium environments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.rollout import Environment, PartialRollout, Position, Rollout, StepRecord
from simic.telemetry.columns import Columns, EventColumns, TableLayout
from simic.telemetry.rows import FindingRow
from simic.training.partial import PartialCheckpoint

T = TypeVar("T")


@dataclass(frozen=True)
class Recorded:
    """The record of one rollout: its steps ``[T, E]`` and the episodes ``[E]``."""

    steps: Columns
    episode: Columns


class Recording(Protocol):
    """The telemetry of one rollout while it is played; saved and restored between steps."""

    @property
    def columns(self) -> list[str]:
        """Return the names of what is kept of a step, in their order."""
        ...

    def add(self, transition: StepRecord) -> None:
        """Take in one step."""

    def tensors(self, reached: PartialRollout) -> dict[str, Tensor]:
        """Return everything that the steps so far have moved, as copies on the CPU."""
        ...

    def resume(
        self, saved: PartialCheckpoint, policy: ActorCritic, normalizers: Normalizers, iteration: int
    ) -> PartialRollout:
        """Go on exactly from there; ``Damaged`` where that was another rollout."""
        ...

    def recorded(self, rollout: Rollout) -> Recorded:
        """Return the columns of the finished rollout."""
        ...

    def kept(self, rollout: Rollout) -> dict[str, Tensor]:
        """Return what an iteration that is kept whole needs beside what every rollout has, ``[T, E, …]``."""
        ...


class Task(Protocol):
    """What the loop asks for: an environment, where its rollouts begin, what is recorded, how it is validated."""

    layout: TableLayout  # of the telemetry

    @property
    def env(self) -> Environment[object]:
        """Return the environments, which have the agent's specs, ``masked`` and ``close`` as well."""
        ...

    @property
    def at_once(self) -> int:
        """Return how many environments run at once; fewer than all where the memory did not suffice."""
        ...

    @at_once.setter
    def at_once(self, envs: int) -> None: ...

    def close(self) -> None:
        """Close the environments."""

    def length_of(self, iteration: int) -> int:
        """Return the number of steps of a rollout."""
        ...

    def position(self) -> Position | None:
        """Return where the next rollout goes on; None: it begins with a reset."""
        ...

    def moved(self, end: Position) -> None:
        """Note where a rollout ended."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return what goes on from rollout to rollout, as it was between the last two."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> FindingRow | None:
        """Go on from there; a finding where that is not exact."""
        ...

    def recording(self) -> Recording:
        """Return the recording of a rollout before its first step."""
        ...

    def events(self, steps: Columns) -> EventColumns:
        """List what happened in the steps."""
        ...

    def rollbacks(self, episode: Columns) -> int:
        """Count the episodes that ended broken."""
        ...

    def validate(self, policy: ActorCritic, normalizers: Normalizers, on_step: Callable[[], None]) -> Columns:
        """Play the episodes that choose the best checkpoint, always the same; ``DECIDED`` is among the columns."""
        ...

    def score(self, validated: Columns) -> float:
        """Return the score of these episodes."""
        ...

    def recovered(self, work: Callable[[], T], again: Callable[[Exception], None]) -> T:
        """Do the work, again where a process was lost, of which ``again`` is told."""
        ...
