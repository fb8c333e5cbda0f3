"""A stage says how far it has come: in lines, as a bar, or not at all."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from simic.pipeline import display
from simic.pipeline.display import LiveView
from simic.telemetry.rows import FindingRow
from simic.training.observers import Lines, Observer, RunInfo
from tests.helpers import episode, steps, update
from tests.training.small_runs import small_params


def test_lines_are_the_first_the_last_and_at_most_one_in_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 101.0, 109.9, 110.1, 111.0, 112.0])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    with display.shown("plain", "headroom") as progress:
        for count in range(1, 7):
            progress("hosts", count, 6)
    with display.shown("none", "headroom") as progress:
        progress("hosts", 6, 6)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"headroom: hosts: {count} of 6 host trainings" for count in (1, 4, 6)]


def test_of_a_bar_stays_a_line_for_each_part_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        "rich.progress.get_console", lambda: Console(file=screen, force_terminal=True, width=100)
    )
    with display.shown("rich", "evaluate", "policies") as progress:
        progress("played", 1, 2)
        progress("played", 2, 2)
        progress("[red]more\x1b", 1, 1)
    lines = [line for line in screen.getvalue().splitlines() if " of " in line]
    assert [line[line.index("evaluate") :] for line in lines] == [
        "evaluate: played: 2 of 2 policies",
        "evaluate: [red]more\\x1b: 1 of 1 policies",
    ]


def test_training_is_shown_live_on_a_terminal_in_lines_elsewhere_and_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shown(style: str, *observers: Observer) -> list[type]:
        return [type(observer) for observer in display.beside(observers, style, {})]

    assert shown("none") == []
    assert (shown("auto"), shown("rich")) == ([Lines], [LiveView])
    monkeypatch.setattr(display.sys.stdout, "isatty", lambda: True)
    assert (shown("auto"), shown("plain", Observer())) == ([LiveView], [Lines, Observer])
    assert shown("plain", Lines(print), Observer()) == [
        Lines,
        Observer,
    ]  # it says the lines elsewhere


class Screen:
    """What a terminal was sent, and what the view shows now."""

    def __init__(self, baseline_scores: dict[str, float] | None = None) -> None:
        self.sent, self.now = io.StringIO(), 100.0
        self.console = Console(file=self.sent, force_terminal=True, width=140, legacy_windows=False)
        self.view = LiveView(baseline_scores or {}, self.console, lambda: self.now)

    @property
    def picture(self) -> dict[str, str]:
        """Its rows by their first word."""
        plain = Console(file=io.StringIO(), width=140)
        with plain.capture() as captured:
            plain.print(self.view._picture())
        return dict(line.split(maxsplit=1) for line in captured.get().splitlines() if line.strip())

    @property
    def lines(self) -> list[str]:
        """That stay: a moving part is erased."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.sent.getvalue())
        return [line.strip() for line in re.split(r"[\r\n]+", plain) if line.startswith("train: ")]


def info(tmp_path, start: int = 0) -> RunInfo:
    return RunInfo(small_params(iterations=4), tmp_path, "d", start, lambda finding: None)


def learned(iteration: int, score: float):
    """An update of which the entropy is known."""
    row = update(iteration, score)
    return row.model_copy(update={"best_iteration": 1, "metrics": {**row.metrics, "entropy": 0.5}})


def test_the_picture_says_phase_rate_score_ops_entropy_findings_and_time_left(tmp_path):
    screen = Screen({"static": 60.0, "best common schedule": 80.25})
    train = info(tmp_path).params.train
    screen.view.on_start(info(tmp_path))
    screen.now += 2.0
    screen.view.on_step(0, 2)
    rate = f"{2 * train.envs / 2.0:,.0f}"
    assert screen.picture["phase"].startswith("playing, step 2 of ")
    assert screen.picture["phase"].rstrip().endswith(f", {rate} decisions a second")
    assert screen.picture["findings"].strip() == "none"
    screen.view.on_rollout(
        0, steps() | {"op": np.array([[0, 0], [1, 0]]), "valid": np.ones((2, 2), bool)}
    )
    screen.view.on_iteration(learned(0, 71.25), episode((50.0, 60.0)))
    screen.view.on_finding(FindingRow(iteration=0, check="c", severity="high", message="m\x1b[2J"))
    screen.now += 2.0  # one of four iterations took two seconds; these two count as well
    picture = screen.picture
    assert picture["score"].strip() == "71.2 on validation, best after iteration 1"
    assert picture["held-out"].strip() == "static 60.0, best common schedule 80.2"
    assert picture["ops"].strip() == "wait 75%, germinate 25%"
    assert picture["entropy"].strip() == "0.50"
    assert picture["findings"].strip() == "1 high"
    assert picture["train"].rstrip().endswith("1/4  0:04 gone, 0:12 left")
    screen.view.on_end("interrupted")
    assert screen.lines == [
        f"train: run {info(tmp_path).name}",
        "train: 1/4   5 epochs  committed  55.0 %  kept 2.0 seeds  "
        "validation  71.2 (static 60.0, best common schedule 80.2)  0:06 left",
        "train: high finding c: m\\x1b[2J",
        "train: interrupted after 0:04",
    ]
