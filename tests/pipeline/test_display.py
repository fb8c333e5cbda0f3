"""A stage says how far it has come: in lines, as a bar, or not at all."""

import io
import re

import pytest
from rich.console import Console

from simic.pipeline import display
from simic.pipeline.display import LiveView
from simic.telemetry.rows import FindingRow
from simic.training.observers import Observer
from simic.training.progress import Lines
from tests.training.small_runs import run, small_params


def test_lines_are_the_first_the_last_and_at_most_one_in_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 101.0, 109.9, 110.1, 111.0, 112.0])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    with display.shown("plain", "headroom") as told:
        for done in range(1, 7):
            told("hosts", done, 6)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"headroom: hosts: {done} of 6 host trainings" for done in (1, 4, 6)]


def test_none_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with display.shown("none", "headroom") as told:
        told("hosts", 6, 6)
    assert capsys.readouterr().out == ""


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
    assert display.of_training("none", {}) == []
    assert isinstance(display.of_training("auto", {})[0], Lines)
    assert isinstance(display.of_training("rich", {})[0], LiveView)
    monkeypatch.setattr(display.sys.stdout, "isatty", lambda: True)
    assert isinstance(display.of_training("auto", {})[0], LiveView)
    assert isinstance(display.of_training("plain", {})[0], Lines)


def test_what_says_the_lines_elsewhere_takes_the_place_of_the_terminal() -> None:
    others = [Observer()]
    assert [type(each) for each in display.beside(others, "plain", {})] == [Lines, Observer]
    elsewhere = [Lines(print), *others]
    assert display.beside(elsewhere, "plain", {}) == elsewhere


def test_training_has_its_lines_and_below_them_a_bar_with_phase_and_rate(prepared, tmp_path) -> None:
    sent, now, seen = io.StringIO(), [100.0], list[str]()
    screen = Console(file=sent, force_terminal=True, width=140, legacy_windows=False)
    view = LiveView({"static": 60.0}, screen, lambda: now[0])

    class Clock(Observer):
        """A step takes a second."""

        def on_step(self, iteration: int, step: int) -> None:
            now[0] += 1.0

    class Notes(Observer):
        """What the bar says after a step."""

        def on_step(self, iteration: int, step: int) -> None:
            seen.append(f"{view._bar.tasks[0].description} {view._bar.tasks[0].completed:.3f}")

    params = small_params(iterations=2)
    run(tmp_path, prepared, [Clock(), view, Notes()], params=params)
    longest, rate = params.train.longest_episode, f"{params.train.envs} decisions a second"
    assert seen[0] == f"train: playing, step 1 of {longest}, {rate} {1 / (longest + 1):.3f}"
    assert seen[longest - 1] == f"train: playing, step {longest} of {longest}, {rate} {longest / (longest + 1):.3f}"
    assert view._bar.tasks[0].description == "train: saving" and view._bar.finished
    view.on_finding(FindingRow(iteration=0, check="c", severity="high", message="m\x1b[2J"))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent.getvalue())
    lines = [line.strip() for line in re.split(r"[\r\n]+", plain) if line.startswith("train: ")]
    done = [line.split()[1] for line in lines if "committed" in line]
    assert done == ["1/2", "2/2"] and lines[-1] == "train: high finding c: m\\x1b[2J"
