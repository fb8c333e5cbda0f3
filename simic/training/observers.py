"""Watch a run: the interface of progress, tracking and live checks, and lines that say how far it is."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simic.params import Params
from simic.telemetry.columns import Columns, mean_measured
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

    @property
    def name(self) -> str:
        return run_name(self.work_dir.name)


class Observer:
    """Override the callbacks you need, which the training thread calls; an exception raised here ends the run."""

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


def summary(update: UpdateRow, episode: Columns, baseline_scores: Mapping[str, float]) -> str:
    """Summarise an iteration in a line's width; a validation score stands beside those of other policies.

    Args:
        update: The row of the update.
        episode: Columns of the episodes that it learned from, ``[E]``.
        baseline_scores: Scores of other policies on the validation tasks, by name.
    """
    # By its columns and not by its task: readers of a log have no task.
    if "fossilized" in episode:
        parts = [
            f"{episode['length'].max():2d} epochs",
            f"committed {episode['committed_accuracy'].mean():5.1f} %",
            f"kept {episode['fossilized'].mean():.1f} seeds",
        ]
    else:
        ended = int(episode["episodes"].sum())
        won = (
            f"return {mean_measured(episode['return']):.5g} of {ended} episodes"
            if ended
            else "no episode ended"
        )
        parts = [f"{update.env_steps} steps", won]
    if update.validation_accuracy == update.validation_accuracy:  # not NaN
        # Validation stands beside the scores that it has to beat.
        beside = ", ".join(
            f"{name.replace('_', ' ')} {score:.1f}" for name, score in baseline_scores.items()
        )
        parts.append(
            f"validation {update.validation_accuracy:5.1f}{f' ({beside})' if beside else ''}"
        )
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """Write seconds as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Lines(Observer):
    """Says one line per iteration; ``baseline_scores`` are scores of other policies, by name."""

    def __init__(
        self,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        baseline_scores: Mapping[str, float] = {},
    ):
        self._say = say
        self._clock = clock
        self._baseline_scores = baseline_scores

    def on_start(self, info: RunInfo) -> None:
        self._total = info.params.train.iterations
        self._first = info.start_iteration
        self._started = self._clock()
        self._say(f"train: run {info.name}")
        if self._first:
            self._say(f"train: resuming after iteration {self._first} of {self._total}")

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        iterations = update.iteration + 1
        # Of this life alone: earlier iterations may have run on another machine.
        per_iteration = (self._clock() - self._started) / (iterations - self._first)
        left = duration(per_iteration * (self._total - iterations))
        count = f"{iterations:>{len(str(self._total))}}/{self._total}"
        self._say(f"train: {count}  {summary(update, episode, self._baseline_scores)}  {left} left")

    def on_finding(self, finding: FindingRow) -> None:
        self._say(f"train: {finding.severity} finding {finding.check}: {finding.message}")

    def on_end(self, status: EndStatus) -> None:
        if status != "finished":
            self._say(f"train: {status} after {duration(self._clock() - self._started)}")
