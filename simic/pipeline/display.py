"""What a stage shows of its progress to the one who started it: moving on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simic.errors import printable
from simic.pipeline.live import LiveView
from simic.training.observers import Observer
from simic.training.progress import Lines

SECONDS_BETWEEN_LINES = 10.0
Style = Literal["auto", "rich", "plain", "none"]
Told = Callable[[str, int, int], None]  # what is done, how many of how many


def is_live(style: Style) -> bool:
    """Whether what is shown moves; with auto on a terminal."""
    return style == "rich" or (style == "auto" and sys.stdout.isatty())


def of_training(style: Style, floors: Mapping[str, float]) -> list[Observer]:
    """The observers for ``runtime.progress``; ``floors`` are scores of others, to be shown beside the policy's."""
    if style == "none":
        return []
    lines = Lines(lambda line: print(printable(line), flush=True), floors=floors)
    return [LiveView(floors) if is_live(style) else lines]


def beside(observers: Sequence[Observer], style: Style, floors: Mapping[str, float]) -> Sequence[Observer]:
    """The observers, and who shows the training on the terminal unless one of them says the lines elsewhere."""
    said = any(isinstance(each, Lines) for each in observers)
    return observers if said else (*of_training(style, floors), *observers)


@contextmanager
def shown(style: Style, command: str, unit: str = "host trainings") -> Iterator[Told]:
    """Whom a stage tells of its parts, one after the other; each part that is done leaves a line."""
    if style == "none":
        yield lambda what, done, count: None
    elif is_live(style):
        with _bar(command, unit) as told:
            yield told
    else:
        yield _lines(command, unit)


def _lines(command: str, unit: str) -> Told:
    last = 0.0

    def told(what: str, done: int, count: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == count or now - last > SECONDS_BETWEEN_LINES:
            last = now
            print(printable(f"{command}: {what}: {done} of {count} {unit}"), flush=True)

    return told


@contextmanager
def _bar(command: str, unit: str) -> Iterator[Told]:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, transient=True) as bar:
        going = bar.add_task(f"{command}: beginning", total=None)

        def told(what: str, done: int, count: int) -> None:
            bar.update(going, description=printable(f"{command}: {what}"), total=count, completed=done)
            if done == count:
                said = printable(f"{command}: {what}: {done} of {count} {unit}")
                bar.console.print(said, markup=False, highlight=False)

        yield told
