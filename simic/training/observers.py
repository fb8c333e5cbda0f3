"""The interface of what watches a run: progress, tracking, live checks. All are called in the training thread."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simic.params import Params
from simic.telemetry.columns import Columns
from simic.telemetry.naming import run_name
from simic.telemetry.rows import FindingRow, UpdateRow

EndStatus = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True)
class RunInfo:
    """The run that is watched. ``report`` records a finding of an observer, which by train.stop_on may end the run."""

    params: Params
    work_dir: Path
    data_sha256: str
    start_iteration: int  # iterations done by earlier lives of this run
    report: Callable[[FindingRow], None]
    start_step: int = 0  # and steps of the next one

    @property
    def name(self) -> str:
        """Return the run's name."""
        return run_name(self.work_dir.name)


class Observer:
    """Override the callbacks you need; an exception raised here ends the run."""

    def on_start(self, info: RunInfo) -> None:
        """Note that training begins or goes on."""

    def on_step(self, iteration: int, step: int) -> None:
        """Note that an environment step of all hosts is done, 1…T."""

    def on_rollout(self, iteration: int, steps: Columns) -> None:
        """Take the steps of an iteration: the columns of telemetry.columns.STEPS."""

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        """Take the result of a rollout and its update; ``episode`` has the columns of telemetry.columns.EPISODES."""

    def on_checkpoint(self, path: Path, iteration: int) -> None:
        """Note that the state after ``iteration`` iterations, and the telemetry up to it, are on disk."""

    def on_finding(self, finding: FindingRow) -> None:
        """Take a finding, of a check or of training itself."""

    def on_end(self, status: EndStatus) -> None:
        """Note that training ended."""
