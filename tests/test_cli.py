"""The command line as a user meets it: exit codes, one line per mistake, no traceback."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simic import cli
from simic.audit.findings import Summary
from simic.errors import AuditFailed
from simic.pipeline import engine, run_summary
from simic.training.trainer import StoppedByFinding
from tests.conftest import Simic

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with the shipped params."""
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_unknown_stage_and_unknown_command_are_refused(simic: Simic) -> None:
    words = simic.refuses("stage", "deploy")
    assert "stage 'deploy': must be one of prepare, headroom, train, evaluate, audit" in words
    assert simic("deploy")[0] == 2


def test_that_a_finding_ends_training_is_one_line(
    simic: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which ones do, and what they say: tests/training/test_trainer.py."""

    def sick(*_: Any) -> None:
        raise StoppedByFinding("stopped by finding rollback_budget in iteration 1")

    monkeypatch.setattr(engine, "perform", sick)
    assert (
        simic.refuses("stage", "train")
        == "simic: stopped by finding rollback_budget in iteration 1\n"
    )


def test_help_and_a_refusal_load_nothing_heavy() -> None:
    """So they answer at once; a measured time would depend on the machine's other work."""
    program = """
import sys
from simic.cli import main
for words in (["--help"], ["grow"]):
    sys.argv = ["simic", *words]
    try:
        main()
    except SystemExit as stopped:
        heavy = "torch" if words == ["grow"] else "torch numpy pydantic yaml mlflow prefect dvc scipy"
        print(stopped.code, [name for name in heavy.split() if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    help_, _, after = result.stdout.partition("0 []\n")
    assert "Usage" in help_ and after == "2 []\n"
    assert (
        result.stderr
        == "simic: grow: needs data, a file or a folder, or --task NAME; see simic grow --help\n"
    )


def test_show_opens_the_report_in_the_browser_or_says_where_it_is(
    simic: Simic, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no report yet; simic run makes one" in simic.refuses("show")
    report = folder / "reports" / "report.html"
    report.parent.mkdir()
    report.write_text("<p>a report")
    opened = folder / "opened"
    browser = folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    monkeypatch.delitem(sys.modules, "webbrowser", raising=False)  # it reads BROWSER once
    assert simic("show")[0] == 0 and str(report) in simic.out
    assert opened.read_text().strip() == report.as_uri()
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    assert simic("show")[0] == 0 and "no browser was found here" in simic.out


def test_an_alarming_result_is_red_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli._say("quiet\x1b[2J", alarming=True)
    assert capsys.readouterr().out == "quiet\\x1b[2J\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli._say("loud", alarming=True)
    cli._say("calm")
    monkeypatch.setenv("NO_COLOR", "1")
    cli._say("plain", alarming=True)
    assert capsys.readouterr().out == "\x1b[1;31mloud\x1b[0m\ncalm\nplain\n"


def test_a_terminal_that_is_not_utf_8_shows_escapes(
    simic: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert simic("show")[0] == 2
    cli._say("1 → 2")
    assert terminal.buffer.getvalue() == b"1 \\u2192 2\n"


def test_what_the_audit_fails_on_is_told_before_it_is_refused(
    simic: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chain(*_: Any) -> None:
        raise AuditFailed("audit.fail_on = 'high': 1 findings")

    monkeypatch.setattr(engine, "run_chain", chain)
    summary = run_summary.RunSummary(
        Summary(what="80 points", record="sound", replay="equal", learning="1 high"),
        "1 high",
        "x",
        "read it",
        True,
        False,
    )
    monkeypatch.setattr(run_summary, "of", lambda _: summary)
    for command in ("run", "audit"):
        assert "audit.fail_on = 'high'" in simic.refuses(command)
        words = [line.split()[0] for line in simic.out.splitlines()]
        assert words == ["what", "record", "replay", "learning", "run", "next", "report"]
