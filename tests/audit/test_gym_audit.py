"""The audit of a run on CartPole: its record holds as it is, and is refuted where it is not what happened."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simic.audit import audit
from simic.audit.findings import Verdict
from simic.audit.record import RunRecord, Table
from simic.audit.report import markdown
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.gym_run import TREE, gym_run


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return gym_run(tmp_path_factory)


@pytest.fixture(scope="module")
def run(workspace: Workspace) -> RunRecord:
    return stages.recorded(TREE, workspace)


def test_the_record_of_a_clean_run_holds(workspace: Workspace) -> None:
    verdict = Verdict.from_json((workspace.reports / "findings.json").read_bytes())
    assert not verdict.refuted
    checks = {result.check for result in verdict.results}
    assert {"C3", "Y1", "Y3", "Y4"} <= checks
    assert not checks & {"F1", "M1", "P5", "C1", "C9"}  # of growth


def test_the_report_has_everyone_who_played(workspace: Workspace, run: RunRecord) -> None:
    text = (workspace.reports / "report.md").read_text()
    assert "| learned |" in text and "| random |" in text and "fossilized" not in text
    page = (workspace.reports / "report.html").read_text()
    assert "Evaluation in fresh episodes" in page and 'id="growth"' not in page
    assert "withheld" in markdown(run, audit.examine(stolen(run, "reward", 1.0), "x"))


def stolen(run: RunRecord, column: str, amount: float) -> RunRecord:
    """Return the record with another number in one step of every environment."""
    values = run.steps.column(column).copy()
    values[20] = ~values[20] if values.dtype.kind == "b" else values[20] + (1 if column == "seen" else amount)
    return replace(run, steps=Table({**run.steps.columns, column: values}))


@pytest.mark.parametrize(
    ("column", "checks"),
    [("reward", {"Y1", "C3"}), ("terminated", {"Y1"}), ("next_value", {"C3"})],
)
def test_a_step_that_was_not_so_is_found(run: RunRecord, column: str, checks: set[str]) -> None:
    assert checks <= {*audit.examine(stolen(run, column, 3.0), "x").refuted}


def test_a_claim_that_does_not_follow_is_found(run: RunRecord) -> None:
    assert run.gym is not None
    content = json.loads(run.gym.to_json())
    content["policies"]["learned"]["mean_return"]["estimate"] += 5.0
    claimed = replace(run, gym=type(run.gym).model_validate(content))
    assert "Y3" in audit.examine(claimed, "x").refuted


def test_returns_of_no_episode_are_no_numbers(workspace: Workspace, run: RunRecord) -> None:
    assert np.isnan(run.episodes.column("return")[run.episodes.column("episodes") == 0]).all()
    assert Path(workspace.grown / "README.md").read_text() == "A Gymnasium environment: no network was grown.\n"
