"""The interface between the training loop and what is trained on: growth, or Gymnasium environments."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.rollout import Position, Rollout, StepRecord
from simic.telemetry.columns import Columns, EventColumns, TableLayout
from simic.telemetry.rows import FindingRow


@dataclass(frozen=True)
class RolloutColumns:
    """The telemetry of one rollout: its steps ``[T, E]`` or ``[T, E, K]``, and the episodes ``[E]``."""

    steps: Columns
    episodes: Columns


class RolloutRecorder(ABC):
    """Collects the telemetry of one rollout while it is played."""

    def add(self, step: StepRecord) -> None:  # noqa: B027 - by default the rollout has all that is recorded
        """Take in one step."""

    @abstractmethod
    def columns(self, rollout: Rollout) -> RolloutColumns:
        """Hand out the telemetry of the finished rollout."""


class Task(ABC):
    """What the loop asks for: an environment, where its rollouts begin, what is recorded, how it is validated."""

    env: Any  # agent.rollout.Environment, which has the agent's specs, ``masked`` and ``close`` as well
    layout: ClassVar[TableLayout]  # of the telemetry
    score_column: ClassVar[str]  # of validation episodes; its mean chooses the best checkpoint

    @property
    def envs_at_once(self) -> int:
        """How many environments run at once; fewer than all where the memory did not suffice."""
        return self.env.num_envs

    @envs_at_once.setter  # noqa: B027 - by default all run at once
    def envs_at_once(self, envs: int) -> None:
        """Run no more at once, where that can be chosen."""

    @abstractmethod
    def steps_of(self, iteration: int) -> int:
        """Choose the number of steps of a rollout."""

    def position(self) -> Position | None:
        """Tell where the next rollout goes on; None: it begins with a reset."""
        return None

    def keep_position(self, end: Position) -> None:  # noqa: B027 - nothing to keep where rollouts begin with a reset
        """Note where a rollout ended."""

    def state_dict(self) -> dict[str, Tensor]:
        """Copy what goes on from rollout to rollout, as it was between the last two."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> FindingRow | None:
        """Go on from there; a finding where that is not exact."""
        return None

    @abstractmethod
    def recorder(self) -> RolloutRecorder:
        """Make a recorder of the rollout that begins now."""

    @abstractmethod
    def events(self, steps: Columns) -> EventColumns:
        """List what happened in the steps."""

    def rollbacks(self, episodes: Columns) -> int:
        """Count the episodes that ended broken."""
        return 0

    @abstractmethod
    def validate(
        self, policy: ActorCritic, normalizers: Normalizers, on_step: Callable[[], None]
    ) -> Columns:
        """Play the episodes that choose the best checkpoint: greedy, always the same ones, seen by no update.

        Args:
            policy: Who decides.
            normalizers: Its scales, which stay as they are.
            on_step: Is called after each step, and may raise.

        Returns:
            The columns of the episodes, and ``DECIDED``, what was decided.
        """

    def score(self, episodes: Columns) -> float:
        """Score validation episodes: the mean of ``score_column`` over all of them."""
        scores = episodes[self.score_column].tolist()
        return sum(scores) / len(scores)
