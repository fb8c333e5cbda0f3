"""`simic explain` after a run: what it says, that it writes nothing, and what it refuses."""

import json
import sys

import pytest

from simic import cli, seals
from simic.evaluation import result
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.pipeline.small_suite import tree

TASK = "linear-held_out-0"


@pytest.fixture
def copied(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(project.root)
    return project


class Asked:
    """``simic explain`` in the folder: exit code, and what it said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capfd = monkeypatch, capfd

    def __call__(self, *arguments: str) -> int | str | None:
        self.monkeypatch.setattr(sys, "argv", ["simic", "explain", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        self.out, self.error = self.capfd.readouterr()
        return stopped.value.code


@pytest.fixture
def explain(copied: Workspace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Asked:
    return Asked(monkeypatch, capfd)


def test_a_decision_is_told_with_what_every_alternative_came_to(copied: Workspace, explain: Asked) -> None:
    before = {path: path.read_bytes() for path in copied.root.rglob("*") if path.is_file()}
    assert explain(TASK, "1") == 0, explain.error
    lines = explain.out.splitlines()
    assert lines[0].startswith(f"{TASK}, host 0, step 1 of 10: ")
    for title in ("Seen", "What the decision hangs on", "Value: ", "What every choice"):
        assert [line for line in lines if line.startswith(title)], title
    told = [line for line in lines if "GERMINATE norm slot" in line or "WAIT" in line.split()[:2]]
    found = stages.explain(tree(), copied, "0", 1)
    # A bare host may wait, or germinate one of two blueprints in its slot.
    choices = {(each.op, each.slot) for each in (found.taken, *found.others)}
    assert choices == {("WAIT", None), ("GERMINATE", 0)} and len(told) >= 2
    assert found.exact and found.taken.score == pytest.approx(found.recorded_score, abs=1e-3)
    assert "the same to the bit" in explain.out
    assert explain("0", "1") == 0 and explain.out.splitlines() == lines
    assert {path: path.read_bytes() for path in copied.root.rglob("*") if path.is_file()} == before


def test_decisions_of_the_evaluation_and_their_explanations_agree(copied: Workspace) -> None:
    """The graded decision of a host is the one that is explained, with the same outcomes."""
    evaluation = result.read(copied.evaluation)
    graded = [each for question in evaluation.counterfactuals.values() for each in question.decisions]
    assert graded and all(question.inexact == 0 for question in evaluation.counterfactuals.values())
    one = graded[0]
    found = stages.explain(tree(), copied, str(one.row), one.step + 1)
    assert (found.taken.op, found.taken.slot) == (one.taken.op, one.taken.slot)
    assert found.taken.probability == pytest.approx(one.taken.probability, abs=1e-4)
    assert found.taken.score == pytest.approx(one.taken.score, abs=1e-3)
    assert sum(each.probability for each in (found.taken, *found.others)) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("task", "step", "said"),
    [
        ("sudoku", "1", "task 'sudoku': must be a host, 0 to 7, or one of linear-held_out-0, "),
        ("8", "1", "task '8': must be a host, 0 to 7, or one of "),
        (TASK, "0", "step 0: must be 1 to 10, as the report counts them"),
        (TASK, "11", "step 11: must be 1 to 10"),
    ],
)
def test_what_there_is_not_is_refused_in_one_line(explain: Asked, task: str, step: str, said: str) -> None:
    assert explain(task, step) == 2
    assert explain.error.startswith(f"simic: {said}") and explain.error.count("\n") == 1


def test_only_what_was_evaluated_is_explained(copied: Workspace, explain: Asked) -> None:
    tested = json.loads(copied.evaluation.read_text())
    copied.evaluation.write_text(json.dumps({**tested, "data_sha256": "0" * 64}))
    assert explain(TASK, "1") == 2 and "is not what evaluate made" in explain.error
    seals.write(copied.root, "evaluate", tree())
    assert explain(TASK, "1") == 2 and "of another policy or other data; run simic evaluate first" in explain.error
    copied.evaluation.unlink()
    assert explain(TASK, "1") == 2 and "no such file; run simic evaluate first" in explain.error
