"""`simic explain` after a run: what it says, that it writes nothing, and what it refuses."""

import json

import pytest

from simic import seals
from simic.evaluation import result
from simic.evaluation.explain import OTHER_EPISODE
from simic.growth.life.vocabulary import Op
from simic.pipeline.paths import Workspace
from tests.conftest import Simic
from tests.pipeline.small_suite import tree

TASK = "linear-held_out-0"


@pytest.fixture
def copied(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(project.root)
    return project


def test_a_decision_is_the_evaluations_and_nothing_is_written(
    copied: Workspace, simic: Simic
) -> None:
    before = {path: path.read_bytes() for path in copied.root.rglob("*") if path.is_file()}
    code, out, error = simic("explain", TASK, 1)
    lines = out.splitlines()
    assert code == 0, error
    heads = result.read(copied.evaluation).actions["learned"][0][0].split()
    op = Op(int(heads[0])).name
    assert lines[0].startswith(f"{TASK}, host 0, step 1 of 10: {op}")
    for title in ("Seen", "Choices, by probability", "What the decision hangs on"):
        assert [line for line in lines if line.startswith(title)], title
    # A bare host may wait, or germinate one of two blueprints in its slot.
    choices = [line.split(maxsplit=1) for line in lines if line[:4] in ("  0.", "  1.")]
    assert len(choices) == 3 and lines[0].partition(": ")[2] in [words for _, words in choices]
    assert OTHER_EPISODE not in out and simic("explain", 0, 1)[:2] == (0, out)
    assert {path: path.read_bytes() for path in copied.root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("task", "step", "refusal"),
    [
        ("sudoku", "1", "task 'sudoku': must be a host, 0 to 7, or one of linear-held_out-0, "),
        (TASK, "11", "step 11: must be 1 to 10"),
    ],
)
@pytest.mark.usefixtures("copied")
def test_what_there_is_not_is_refused_in_one_line(
    simic: Simic, task: str, step: str, refusal: str
) -> None:
    assert simic.refuses("explain", task, step).startswith(f"simic: {refusal}")


def test_only_what_was_evaluated_is_explained(copied: Workspace, simic: Simic) -> None:
    tested = json.loads(copied.evaluation.read_text())
    copied.evaluation.write_text(json.dumps({**tested, "data_sha256": "0" * 64}))
    assert "is not what evaluate made" in simic.refuses("explain", TASK, 1)
    seals.write(copied.root, seals.identify(copied.root, "evaluate", tree()))
    assert "of another policy or other data; run simic evaluate first" in simic.refuses(
        "explain", TASK, 1
    )
    copied.evaluation.unlink()
    assert "no such file; run simic evaluate first" in simic.refuses("explain", TASK, 1)
