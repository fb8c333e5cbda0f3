"""Show the progress of a stage to the one who started it: moving on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressLines
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from simic.errors import printable
from simic.growth.life.vocabulary import Op
from simic.progress import Progress
from simic.telemetry.columns import Columns
from simic.telemetry.rows import SEVERITIES, FindingRow, Severity, UpdateRow
from simic.training.observers import EndStatus, Lines, Observer, RunInfo, duration

SECONDS_BETWEEN_LINES = 10.0
COLOURS: dict[Severity, str] = {
    "critical": "bold red",
    "high": "red",
    "medium": "yellow",
    "low": "",
    "info": "dim",
}
BAR_WIDTH = 40
PICTURES_PER_SECOND = 4  # of the live part
Style = Literal["auto", "rich", "plain", "none"]


def is_live(style: Style) -> bool:
    """Tell whether the display moves: with auto on a terminal."""
    return style == "rich" or (style == "auto" and sys.stdout.isatty())


def beside(
    observers: Sequence[Observer], style: Style, baseline_scores: Mapping[str, float]
) -> Sequence[Observer]:
    """Add an observer that shows the training on the terminal, beside ``baseline_scores`` of other policies;
    none where one of them says the lines elsewhere.

    Args:
        observers: Of the training already.
        style: How progress is shown; ``none`` adds no observer.
        baseline_scores: Mean scores of other policies by name, on the scale of the validation score.
    """
    # Prefect's log has the lines already: a second observer would print each of them twice.
    if style == "none" or any(isinstance(observer, Lines) for observer in observers):
        return observers
    lines = Lines(lambda line: print(printable(line), flush=True), baseline_scores=baseline_scores)
    return (LiveView(baseline_scores) if is_live(style) else lines, *observers)


@contextmanager
def shown(style: Style, command: str, unit: str = "host trainings") -> Iterator[Progress]:
    """Show what a stage reports of its parts, one after the other; each part that is done leaves a line.

    Args:
        style: How progress is shown; ``none`` shows nothing.
        command: What the lines begin with.
        unit: What is counted; empty where the name of a part says it.
    """
    if style == "none":
        yield lambda part, count, total: None
        return
    # A log file has no cursor: a line now and then, and one at the end of each part.
    if not is_live(style):
        yield _lines(command, unit)
        return
    description = TextColumn("{task.description}", markup=False)
    with ProgressLines(
        description, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True
    ) as bar:
        # One row for all parts: their names and numbers differ, and only one is in progress.
        row = bar.add_task(f"{command}: beginning", total=None)

        def progress(part: str, count: int, total: int) -> None:
            bar.update(
                row, description=printable(f"{command}: {part}"), total=total, completed=count
            )
            if count == total:
                line = printable(f"{command}: {part}: {count} of {total} {unit}".rstrip())
                bar.console.print(line, markup=False, highlight=False)

        yield progress


def _lines(command: str, unit: str) -> Progress:
    last = 0.0

    def progress(part: str, count: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if count == total or now - last > SECONDS_BETWEEN_LINES:
            last = now
            print(printable(f"{command}: {part}: {count} of {total} {unit}".rstrip()), flush=True)

    return progress


class LiveView(Lines):
    """Say what ``Lines`` says; show below it phase, rate, score beside what others reach, ops."""

    def __init__(
        self,
        baseline_scores: Mapping[str, float],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(self._print, clock, baseline_scores)
        self._console = console or Console()
        self._live: Live | None = None
        self._ops = self._score = self._entropy = ""
        self._findings = dict.fromkeys(reversed(SEVERITIES), 0)

    def on_start(self, info: RunInfo) -> None:
        super().on_start(info)
        self._train = info.params.train
        self._name = info.name
        self._begin_iteration(info.start_iteration, "starting")
        # Transient, so that lines printed meanwhile stay, and the picture leaves none behind.
        self._live = Live(
            console=self._console,
            get_renderable=self._picture,
            refresh_per_second=PICTURES_PER_SECOND,
            transient=True,
        )
        self._live.start()

    def _begin_iteration(self, iteration: int, phase: str) -> None:
        self._iteration = iteration
        self._step = 0
        self._iteration_began = self._clock()
        self._phase = phase

    def on_step(self, iteration: int, step: int) -> None:
        self._step = step
        self._phase = f"playing, step {step} of {self._train.longest_episode}"

    def on_rollout(self, iteration: int, steps: Columns) -> None:
        self._phase = "learning"
        self._ops = op_mix(steps) if "op" in steps else ""

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        super().on_iteration(update, episode)
        self._begin_iteration(update.iteration + 1, "saving")
        # Each of the following changes once in an iteration; the picture is drawn several times a second.
        self._entropy = f"{update.metrics['entropy']:.2f}"
        if update.validation_accuracy == update.validation_accuracy:  # not NaN
            best = f"best after iteration {update.best_iteration}"
            self._score = f"{update.validation_accuracy:.1f} on validation, {best}"

    def on_finding(self, finding: FindingRow) -> None:
        self._findings[finding.severity] += 1
        self._print(
            f"train: {finding.severity} finding {finding.check}: {finding.message}",
            COLOURS[finding.severity],
        )

    def on_end(self, status: EndStatus) -> None:
        # The moving part ends first: the last lines would be drawn over by it.
        if self._live is not None:
            self._live.stop()
        super().on_end(status)

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(Text(printable(line), style), soft_wrap=True)

    def _picture(self) -> RenderableType:
        total = self._train.iterations
        now = self._clock()
        # Learning counts as one more step, so that the bar does not stand still before the next iteration.
        steps = self._train.longest_episode + 1
        progress = self._iteration + self._step / steps
        since_start = progress - self._first
        left = ""
        if since_start > 0:
            left = f", {duration((now - self._started) / since_start * (total - progress))} left"
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(f"train {self._name}"),
            ProgressBar(total=total, completed=progress, width=BAR_WIDTH),
            Text(f"{self._iteration}/{total}  {duration(now - self._started)} gone{left}"),
        )
        rows = Table.grid(padding=(0, 2))
        for name, text in self._rows(now).items():
            if text:
                rows.add_row(Text(name, style="dim"), Text(text))
        return Group(head, rows)

    def _rows(self, now: float) -> dict[str, str]:
        # Of this iteration alone: the rate of the whole run would hide that it has become slow.
        decisions = self._step * self._train.envs
        seconds = now - self._iteration_began
        rate = (
            f", {decisions / seconds:,.0f} decisions a second"
            if decisions > 0 and seconds > 0
            else ""
        )
        return {
            "phase": f"{self._phase}{rate}",
            "score": self._score,
            "held-out": ", ".join(
                f"{name} {score:.1f}" for name, score in self._baseline_scores.items()
            ),
            "ops": self._ops,
            "entropy": self._entropy,
            "findings": ", ".join(
                f"{count} {severity}" for severity, count in self._findings.items() if count
            )
            or "none",
        }


def op_mix(steps: Columns) -> str:
    """List the share of each op in the valid steps of an iteration, the most frequent first."""
    # Rows after a rollback are no decisions of the policy.
    ops = steps["op"][steps["valid"]]
    counts = {kind.name.lower().replace("_", " "): int((ops == kind).sum()) for kind in Op}
    ranked = sorted(counts.items(), key=lambda count: -count[1])
    return ", ".join(f"{name} {count / max(ops.size, 1):.0%}" for name, count in ranked if count)
