"""Show the progress of a stage to the one who started it: moving on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from simic.errors import printable
from simic.telemetry.columns import Columns
from simic.telemetry.rows import UpdateRow
from simic.training.observers import EndStatus, Observer, RunInfo
from simic.training.progress import Lines

SECONDS_BETWEEN_LINES = 10.0
Style = Literal["auto", "rich", "plain", "none"]
OnProgress = Callable[[str, int, int], None]  # what is done, how many of how many


def is_live(style: Style) -> bool:
    """Return whether what is shown moves; with auto on a terminal."""
    return style == "rich" or (style == "auto" and sys.stdout.isatty())


def of_training(style: Style, floors: Mapping[str, float]) -> list[Observer]:
    """Return the observers for ``runtime.progress``; ``floors`` are scores to show beside the policy's."""
    if style == "none":
        return []
    return [
        LiveView(floors) if is_live(style) else Lines(lambda line: print(printable(line), flush=True), floors=floors)
    ]


def beside(observers: Sequence[Observer], style: Style, floors: Mapping[str, float]) -> Sequence[Observer]:
    """Add an observer that shows the training on the terminal, unless one of them says the lines elsewhere."""
    said = any(isinstance(each, Lines) for each in observers)
    return observers if said else (*of_training(style, floors), *observers)


@contextmanager
def shown(style: Style, command: str, unit: str = "host trainings") -> Iterator[OnProgress]:
    """Show what a stage reports of its parts, one after the other; each part that is done leaves a line."""
    if style == "none":
        yield lambda what, done, count: None
    elif is_live(style):
        with _bar() as bar:
            yield _on_bar(bar, command, unit)
    else:
        yield _lines(command, unit)


def _lines(command: str, unit: str) -> OnProgress:
    last = 0.0

    def on_progress(what: str, done: int, count: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == count or now - last > SECONDS_BETWEEN_LINES:
            last = now
            print(printable(f"{command}: {what}: {done} of {count} {unit}".rstrip()), flush=True)

    return on_progress


def _bar(console: Console | None = None) -> Progress:
    """Make a bar that is erased when it stops; what is printed on its console stays above it."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True)


def _on_bar(bar: Progress, command: str, unit: str) -> OnProgress:
    task = bar.add_task(f"{command}: beginning", total=None)

    def on_progress(what: str, done: int, count: int) -> None:
        bar.update(task, description=printable(f"{command}: {what}"), total=count, completed=done)
        if done == count:
            bar.console.print(Text(printable(f"{command}: {what}: {done} of {count} {unit}".rstrip())))

    return on_progress


class LiveView(Lines):
    """Say the lines of training, and show below them a bar with the phase of the iteration and the rate of playing."""

    def __init__(
        self, floors: Mapping[str, float], console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bar, self._now = _bar(console), clock
        super().__init__(self._print, clock, floors)

    def on_start(self, info: RunInfo) -> None:
        super().on_start(info)
        self._train, self._skipped, self._began = info.params.train, info.start_step, self._now()
        self._task = self._bar.add_task("starting", total=self._train.iterations, completed=info.start_iteration)
        self._bar.start()

    def on_step(self, iteration: int, step: int) -> None:
        played, seconds = (step - self._skipped) * self._train.envs, self._now() - self._began
        rate = f", {played / seconds:,.0f} decisions a second" if seconds > 0 else ""
        longest = self._train.longest_episode
        self._show(f"playing, step {step} of {longest}{rate}", iteration + step / (longest + 1))

    def on_rollout(self, iteration: int, steps: Columns) -> None:
        self._show("learning", iteration + self._train.longest_episode / (self._train.longest_episode + 1))

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        super().on_iteration(update, episode)
        self._skipped, self._began = 0, self._now()
        self._show("saving", update.iteration + 1)

    def on_end(self, status: EndStatus) -> None:
        self._bar.stop()
        super().on_end(status)

    def _print(self, line: str) -> None:
        self._bar.console.print(Text(printable(line)), soft_wrap=True)

    def _show(self, phase: str, done: float) -> None:
        self._bar.update(self._task, description=f"train: {phase}", completed=done)
