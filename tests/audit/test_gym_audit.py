"""The audit of a run on CartPole: sound and equal as it is, and not where anything was edited."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simic.audit import audit
from simic.audit.checks.base import Check
from simic.audit.findings import ReplayResult, Verdict
from simic.audit.record import RunRecord, Table
from simic.audit.replay import RunFiles, replaying
from simic.audit.report import markdown
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.gym_run import TREE, gym_run

from .synthetic import with_needs_alone


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return gym_run(tmp_path_factory)


@pytest.fixture(scope="module")
def run(workspace: Workspace) -> RunRecord:
    return stages.recorded(TREE, workspace)


def test_a_clean_run_is_sound_and_comes_out_the_same_again(workspace: Workspace) -> None:
    verdict = Verdict.from_json((workspace.reports / "findings.json").read_bytes())
    assert not verdict.unsound
    assert "The record is sound" in verdict.summary.record
    assert (
        verdict.summary.replay.startswith("Training: equal (")
        and "Evaluation: equal (" in verdict.summary.replay
    )
    checks = {result.check for result in verdict.results}
    assert {"Y1", "Y3", "Y4", "Z1", "Z2"} <= checks
    assert not checks & {"F1", "M1", "P5", "C1", "X8"}  # of growth


def test_the_report_has_everyone_who_played(workspace: Workspace, run: RunRecord) -> None:
    text = (workspace.reports / "report.md").read_text()
    assert "| learned |" in text and "| random |" in text and "fossilized" not in text
    page = (workspace.reports / "report.html").read_text()
    assert "Evaluation in fresh episodes" in page and 'id="growth"' not in page
    assert "withheld" in markdown(run, audit.examine(with_step(run, "reward"), "x"))


@pytest.mark.parametrize("check", audit.checks(is_gym=True), ids=lambda check: check.id)
def test_a_check_reads_nothing_but_what_it_needs(check: Check, run: RunRecord) -> None:
    if check.id == "X7":
        return  # looks at whatever tables there are
    bare = check.run(with_needs_alone(run, check.needs))
    assert bare.status is check.run(run).status, bare.measured


def with_step(run: RunRecord, column: str) -> RunRecord:
    """Change one step of every environment in the record."""
    values = run.steps.column(column).copy()
    values[-20] = ~values[-20] if values.dtype.kind == "b" else values[-20] + 3.0
    return replace(run, steps=Table({**run.steps.columns, column: values}))


@pytest.mark.parametrize("column", ["reward", "terminated"])
def test_a_step_that_was_not_so_is_found(run: RunRecord, column: str) -> None:
    assert "Y1" in audit.examine(with_step(run, column), "x").unsound


def test_an_iteration_that_is_recorded_twice_is_not_called_missing(run: RunRecord) -> None:
    columns = run.episodes.columns
    twice = {name: np.concatenate((values, values[:1])) for name, values in columns.items()}
    check = next(check for check in audit.checks(is_gym=True) if check.id == "Y1")
    outcome = check.run(replace(run, episodes=Table(twice)))
    assert [row["what"] for row in outcome.evidence] == ["recorded twice"]


def claimed(run: RunRecord, *path: Any, change: Any) -> RunRecord:
    """Change one value of evaluation.json."""
    assert run.gym is not None
    content = json.loads(run.gym.to_json())
    node = content
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = change(node[path[-1]])
    return replace(run, gym=type(run.gym).model_validate(content))


def test_a_claim_that_does_not_follow_is_found(run: RunRecord) -> None:
    changed = claimed(
        run, "policies", "learned", "mean_return", "estimate", change=lambda value: value + 5.0
    )
    assert "Y3" in audit.examine(changed, "x").unsound
    for count in ("env_steps", "eval_seeds", "rng_seed"):
        changed = claimed(run, count, change=lambda value: value + 1)
        assert "Y3" in audit.examine(changed, "x").unsound, count


def replays(run: RunRecord, workspace: Workspace) -> dict[str, ReplayResult]:
    files = RunFiles(workspace.prepared, workspace.telemetry, workspace.checkpoints)
    with replaying(run, files) as results:
        return {replay.part: replay for replay in results()}


def test_a_replay_differs_where_a_step_or_an_action_was_edited(
    run: RunRecord, workspace: Workspace
) -> None:
    edited = claimed(
        with_step(run, "value"),
        "actions",
        "learned",
        0,
        0,
        change=lambda action: str(1 - int(action)),
    )
    parts = replays(edited, workspace)
    assert (parts["training"].outcome, parts["training"].differences) == (
        "differs",
        ("steps.value",),
    )
    assert (parts["evaluation"].outcome, parts["evaluation"].differences) == (
        "differs",
        ("learned.actions",),
    )


def test_what_a_replay_needs_and_lacks_is_said(run: RunRecord, workspace: Workspace) -> None:
    assert run.provenance is not None and run.checkpoints is not None
    changed = replace(run, provenance=replace(run.provenance, code_changed_since=("agent",)))
    for replay in replays(changed, workspace).values():
        assert (replay.outcome, replay.detail) == (
            "not possible",
            "the code is not that of the run: agent",
        )
    for replay in replays(replace(run, checkpoints={}), workspace).values():
        assert replay.outcome == "not possible" and "missing or damaged" in replay.detail


def test_returns_of_no_episode_are_no_numbers(workspace: Workspace, run: RunRecord) -> None:
    assert np.isnan(run.episodes.column("return")[run.episodes.column("episodes") == 0]).all()
    assert (
        Path(workspace.grown / "README.md").read_text()
        == "A Gymnasium environment: no network was grown.\n"
    )
