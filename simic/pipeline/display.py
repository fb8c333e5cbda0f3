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
from simic.telemetry.rows import FindingRow, Severity, UpdateRow
from simic.training.observers import EndStatus, Lines, Observer, RunInfo

SECONDS_BETWEEN_LINES = 10.0
COLOURS: dict[Severity, str] = {"critical": "bold red", "high": "red", "medium": "yellow", "low": "", "info": "dim"}
Style = Literal["auto", "rich", "plain", "none"]
Told = Callable[[str, int, int], None]  # what is done, how many of how many


def is_live(style: Style) -> bool:
    """Return whether what is shown moves; with auto on a terminal."""
    return style == "rich" or (style == "auto" and sys.stdout.isatty())


def beside(observers: Sequence[Observer], style: Style, floors: Mapping[str, float]) -> Sequence[Observer]:
    """Add an observer that shows the training on the terminal, beside ``floors``, which are scores of other policies;
    none where one of them says the lines elsewhere.
    """
    if style == "none" or any(isinstance(each, Lines) for each in observers):
        return observers
    lines = Lines(lambda line: print(printable(line), flush=True), floors=floors)
    return (TrainingBar(floors) if is_live(style) else lines, *observers)


def _bar(console: Console | None = None) -> Progress:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True)


@contextmanager
def shown(style: Style, command: str, unit: str = "host trainings") -> Iterator[Told]:
    """Show what a stage reports of its parts, one after the other; each part that is done leaves a line."""
    if style == "none":
        yield lambda what, done, count: None
        return
    if not is_live(style):
        yield _lines(command, unit)
        return
    with _bar() as bar:
        going = bar.add_task(f"{command}: beginning", total=None)

        def told(what: str, done: int, count: int) -> None:
            bar.update(going, description=printable(f"{command}: {what}"), total=count, completed=done)
            if done == count:
                said = printable(f"{command}: {what}: {done} of {count} {unit}".rstrip())
                bar.console.print(said, markup=False, highlight=False)

        yield told


def _lines(command: str, unit: str) -> Told:
    last = 0.0

    def told(what: str, done: int, count: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == count or now - last > SECONDS_BETWEEN_LINES:
            last = now
            print(printable(f"{command}: {what}: {done} of {count} {unit}".rstrip()), flush=True)

    return told


class TrainingBar(Lines):
    """Say what ``Lines`` says, above a bar of iterations and what the present one is at."""

    def __init__(self, floors: Mapping[str, float], console: Console | None = None) -> None:
        super().__init__(self._print, floors=floors)
        self._bar = _bar(console)

    def on_start(self, info: RunInfo) -> None:
        super().on_start(info)
        train = info.params.train
        self._steps = train.longest_episode
        self._going = self._bar.add_task("train: starting", total=train.iterations, completed=info.start_iteration)
        self._bar.start()

    def on_step(self, iteration: int, step: int) -> None:
        done = iteration + step / (self._steps + 1)  # learning counts as another step
        self._bar.update(self._going, description=f"train: playing, step {step} of {self._steps}", completed=done)

    def on_rollout(self, iteration: int, steps: Columns) -> None:
        self._bar.update(self._going, description="train: learning")

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        super().on_iteration(update, episode)
        self._bar.update(self._going, description="train: saving", completed=update.iteration + 1)

    def on_finding(self, finding: FindingRow) -> None:
        self._print(f"train: {finding.severity} finding {finding.check}: {finding.message}", COLOURS[finding.severity])

    def on_end(self, status: EndStatus) -> None:
        self._bar.stop()
        super().on_end(status)

    def _print(self, line: str, style: str = "") -> None:
        self._bar.console.print(Text(printable(line), style), soft_wrap=True)
