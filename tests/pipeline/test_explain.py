"""`simic explain` after a run: what it says, that it writes nothing, and what it refuses."""

import json

import pytest

from simic import seals
from simic.evaluation import result
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.conftest import Simic
from tests.pipeline.small_suite import tree

TASK = "linear-held_out-0"


@pytest.fixture
def copied(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(project.root)
    return project


def test_a_decision_is_told_with_what_every_alternative_came_to(copied: Workspace, simic: Simic) -> None:
    before = {path: path.read_bytes() for path in copied.root.rglob("*") if path.is_file()}
    code, out, error = simic("explain", TASK, 1)
    lines = out.splitlines()
    assert code == 0, error
    assert lines[0].startswith(f"{TASK}, host 0, step 1 of 10: ")
    for title in ("Seen", "What the decision hangs on", "Value: ", "What every choice"):
        assert [line for line in lines if line.startswith(title)], title
    told = [line for line in lines if "GERMINATE norm slot" in line or "WAIT" in line.split()[:2]]
    found = stages.explain(tree(), copied, "0", 1)
    # A bare host may wait, or germinate one of two blueprints in its slot.
    choices = {(each.op, each.slot) for each in (found.taken, *found.others)}
    assert choices == {("WAIT", None), ("GERMINATE", 0)} and len(told) >= 2
    assert found.exact and found.taken.score == pytest.approx(found.recorded_score, abs=1e-3)
    assert "the same to the bit" in out
    assert simic("explain", 0, 1)[:2] == (0, out)
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
        (TASK, "11", "step 11: must be 1 to 10"),
    ],
)
@pytest.mark.usefixtures("copied")
def test_what_there_is_not_is_refused_in_one_line(simic: Simic, task: str, step: str, said: str) -> None:
    assert simic.refuses("explain", task, step).startswith(f"simic: {said}")


def test_only_what_was_evaluated_is_explained(copied: Workspace, simic: Simic) -> None:
    tested = json.loads(copied.evaluation.read_text())
    copied.evaluation.write_text(json.dumps({**tested, "data_sha256": "0" * 64}))
    assert "is not what evaluate made" in simic.refuses("explain", TASK, 1)
    seals.write(copied.root, "evaluate", tree())
    assert "of another policy or other data; run simic evaluate first" in simic.refuses("explain", TASK, 1)
    copied.evaluation.unlink()
    assert "no such file; run simic evaluate first" in simic.refuses("explain", TASK, 1)
