"""A stage says how far it has come: in lines, as a bar, or not at all."""

import io
import re

import pytest
from rich.console import Console

from simic.pipeline import display
from simic.pipeline.display import TrainingBar
from simic.telemetry.rows import FindingRow
from simic.training.observers import Lines, Observer, RunInfo
from tests.helpers import episode, steps, update
from tests.training.small_runs import run, small_params


def test_lines_are_the_first_the_last_and_at_most_one_in_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 101.0, 109.9, 110.1, 111.0, 112.0])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    with display.shown("plain", "headroom") as told:
        for done in range(1, 7):
            told("hosts", done, 6)
    with display.shown("none", "headroom") as told:
        told("hosts", 6, 6)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"headroom: hosts: {done} of 6 host trainings" for done in (1, 4, 6)]


def test_of_a_bar_stays_a_line_for_each_part_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("rich.progress.get_console", lambda: Console(file=screen, force_terminal=True, width=100))
    with display.shown("rich", "evaluate", "policies") as told:
        told("played", 1, 2)
        told("played", 2, 2)
        told("[red]more\x1b", 1, 1)
    lines = [line for line in screen.getvalue().splitlines() if " of " in line]
    assert [line[line.index("evaluate") :] for line in lines] == [
        "evaluate: played: 2 of 2 policies",
        "evaluate: [red]more\\x1b: 1 of 1 policies",
    ]


def test_training_is_shown_live_on_a_terminal_in_lines_elsewhere_and_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shown(style: str, *observers: Observer) -> list[type]:
        return [type(each) for each in display.beside(observers, style, {})]

    assert shown("none") == []
    assert (shown("auto"), shown("rich")) == ([Lines], [TrainingBar])
    monkeypatch.setattr(display.sys.stdout, "isatty", lambda: True)
    assert (shown("auto"), shown("plain", Observer())) == ([TrainingBar], [Lines, Observer])
    assert shown("plain", Lines(print), Observer()) == [Lines, Observer]  # it says the lines elsewhere


def test_a_training_is_lines_above_a_bar_that_says_what_it_is_at(tmp_path):
    screen, picture = (Console(file=io.StringIO(), width=140, force_terminal=live) for live in (True, False))
    view = TrainingBar({"static": 60.0}, screen)

    def seen() -> str:
        with picture.capture() as captured:
            picture.print(view._bar.get_renderable())
        return captured.get().strip()

    info = RunInfo(small_params(iterations=4), tmp_path, "d", 1, lambda finding: None, 1)
    view.on_start(info)
    view.on_step(1, 2)
    assert seen().startswith(f"train: playing, step 2 of {info.params.train.longest_episode} ") and " 1/4 " in seen()
    view.on_rollout(1, steps())
    assert seen().startswith("train: learning ")
    view.on_iteration(update(1, 71.25), episode((50.0, 60.0)))
    view.on_finding(FindingRow(iteration=0, check="c", severity="high", message="m\x1b[2J"))
    assert seen().startswith("train: saving ") and " 2/4 " in seen()
    view.on_end("interrupted")
    assert lines(screen)[1:] == [
        "train: resuming after iteration 1 of 4 and 1 steps of the next",
        "train: 2/4   5 epochs  committed  55.0 %  kept 2.0 seeds  validation  71.2 (static 60.0)  0:00 left",
        "train: high finding c: m\\x1b[2J",
        "train: interrupted after 0:00",
    ]


def lines(screen: Console) -> list[str]:
    """Return those that stay: a moving part is erased."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())
    return [line.strip() for line in re.split(r"[\r\n]+", plain) if re.match(r"train: (?!.*[━╸])", line)]


def test_it_follows_a_real_run_to_its_end(prepared, tmp_path):
    screen = Console(file=io.StringIO(), width=140, force_terminal=True)
    view = TrainingBar({}, screen)
    run(tmp_path, prepared, [view], params=small_params(iterations=2))
    assert [line.split()[1] for line in lines(screen) if "committed" in line] == ["1/2", "2/2"]
    assert view._bar.finished and not view._bar.live.is_started
