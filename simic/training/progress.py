"""Progress on the terminal: a live bar where there is one, plain lines elsewhere. An observer of training."""

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from simic.errors import printable
from simic.telemetry.columns import Array, Columns
from simic.telemetry.rows import FindingRow, UpdateRow
from simic.training.observers import EndStatus, Observer, RunInfo

if TYPE_CHECKING:
    from rich.progress import Progress


def choose(style: Literal["auto", "rich", "plain", "none"]) -> list[Observer]:
    """The observers for ``runtime.progress``; auto is rich on a terminal, if it is installed."""
    if style == "none":
        return []
    if style == "rich" or (style == "auto" and sys.stdout.isatty() and importlib.util.find_spec("rich")):
        return [Bar()]
    return [Lines(lambda line: print(printable(line), flush=True))]


def summary(update: UpdateRow, episode: Columns) -> str:
    """What one iteration came to, in a line's width."""
    parts = [
        f"return {mean(episode['return']):6.2f}",
        f"committed {mean(episode['committed_accuracy']):5.1f} %",
        f"kept {mean(episode['fossilized']):.1f} seeds",
    ]
    if update.validation_accuracy == update.validation_accuracy:  # not NaN
        parts.append(f"validation score {update.validation_accuracy:5.1f}")
    return "  ".join(parts)


def mean(values: Array) -> float:
    """Over hosts."""
    return float(values.mean())


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Lines(Observer):
    """One line per iteration, handed to ``say``."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._say, self._clock = say, clock

    def on_start(self, info: RunInfo) -> None:
        self._total, self._first, self._started = (
            info.params.train.iterations,
            info.start_iteration,
            self._clock(),
        )
        self._say(f"train: run {info.name}")
        if self._first or info.start_step:
            inside = f" and {info.start_step} steps of the next" if info.start_step else ""
            self._say(f"train: resuming after iteration {self._first} of {self._total}{inside}")

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        done = update.iteration + 1
        per_iteration = (self._clock() - self._started) / (done - self._first)
        left = duration(per_iteration * (self._total - done))
        self._say(f"train: {done:>{len(str(self._total))}}/{self._total}  {summary(update, episode)}  {left} left")

    def on_finding(self, finding: FindingRow) -> None:
        self._say(f"train: {finding.severity} finding {finding.check}: {finding.message}")

    def on_end(self, status: EndStatus) -> None:
        if status != "finished":
            self._say(f"train: {status} after {duration(self._clock() - self._started)}")


class Bar(Observer):
    """A rich progress bar that moves with every step."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def on_start(self, info: RunInfo) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._steps = info.params.train.episode_steps
        columns = (
            f"train {info.name}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self._progress = Progress(*columns)
        self._progress.start()
        total = info.params.train.iterations
        self._task = self._progress.add_task("", total=total, completed=info.start_iteration)

    def on_step(self, iteration: int, step: int) -> None:
        self._bar.update(self._task, completed=iteration + step / (self._steps + 1))

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        self._bar.update(self._task, completed=update.iteration + 1, description=summary(update, episode))

    def on_finding(self, finding: FindingRow) -> None:
        self._bar.print(printable(f"{finding.severity} finding {finding.check}: {finding.message}"), markup=False)

    def on_end(self, status: EndStatus) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def _bar(self) -> "Progress":
        assert self._progress is not None  # on_start comes first
        return self._progress
