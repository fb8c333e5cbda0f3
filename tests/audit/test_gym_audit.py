"""The audit of a run on CartPole: certified as it is, refuted where its record is not what happened."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simic.audit import audit, certify_gym
from simic.audit.certificate import Certificate, Certified
from simic.audit.certify import part
from simic.audit.findings import Status, Verdict
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


def refuting(checks: set[str], run: RunRecord, workspace: Workspace) -> set[str]:
    """Return which of these checks refute a record, of the parts of the certificate that they are about."""
    folders = workspace.prepared, workspace.prepared, workspace.telemetry, workspace.checkpoints
    subject, parts = certify_gym.CertifiedGym(*folders, run), list[Certified]()
    if "K2" in checks:
        parts.append(part("episodes", subject.episodes))
    if "K3" in checks:
        parts.append(part("evaluation", subject.evaluation))
    return checks & {*audit.examine(replace(run, certificate=Certificate(parts=tuple(parts))), "x").refuted}


def test_a_clean_run_is_certified_and_says_what_was_not_evaluated(workspace: Workspace) -> None:
    verdict = Verdict.from_json((workspace.reports / "findings.json").read_bytes())
    assert verdict.certified
    unknown = {result.check for result in verdict.with_status(Status.NOT_EVALUATED)}
    assert "X1" in unknown
    checks = {result.check for result in verdict.results}
    assert {"K1", "K2", "K3", "C3", "Y1", "Y3", "Y4"} <= checks
    assert not checks & {"K4", "K5", "F1", "M1", "P5", "C1", "C9"}  # of growth


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
    [("reward", {"Y1", "C3", "K2"}), ("terminated", {"Y1", "K2"}), ("next_value", {"C3"}), ("seen", {"K2"})],
)
def test_a_step_that_was_not_so_is_found(run: RunRecord, workspace: Workspace, column: str, checks: set[str]) -> None:
    assert refuting(checks, stolen(run, column, 3.0), workspace) == checks


@pytest.mark.parametrize(
    ("place", "change", "check"),
    [
        ("policies/learned/per_seed/returns", lambda returns: [returns[0] + 5.0, *returns[1:]], "K3"),
        ("policies/learned/mean_return/estimate", lambda value: value + 5.0, "Y3"),
        ("actions/learned", lambda rows: [[str(1 - int(rows[0][0])), *rows[0][1:]], *rows[1:]], "K3"),
    ],
)
def test_a_claim_that_does_not_hold_is_found(
    run: RunRecord, workspace: Workspace, place: str, change: Callable[[Any], Any], check: str
) -> None:
    assert run.gym is not None
    content, (*way, last) = json.loads(run.gym.to_json()), place.split("/")
    node = reduce(getitem, way, content)
    node[last] = change(node[last])
    claimed = replace(run, gym=type(run.gym).model_validate(content))
    assert refuting({check}, claimed, workspace) == {check}


def test_returns_of_no_episode_are_no_numbers(workspace: Workspace, run: RunRecord) -> None:
    assert np.isnan(run.episodes.column("return")[run.episodes.column("episodes") == 0]).all()
    assert Path(workspace.grown / "README.md").read_text() == "A Gymnasium environment: no network was grown.\n"
