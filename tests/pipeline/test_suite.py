"""A tiny suite through the real stages, and what is refused, said and recorded of it."""

import json

import pytest
import yaml

from simic import durable
from simic.audit.record import RunRecord
from simic.errors import SimicError
from simic.evaluation import result
from simic.pipeline import engine, run_summary, stages
from simic.pipeline.paths import Workspace
from simic.telemetry import starts
from tests.conftest import Simic
from tests.helpers import ROOT
from tests.pipeline.small_suite import tree


def test_the_controllers_cost_is_every_episode_that_was_played_while_it_was_trained(
    suite_run: Workspace,
) -> None:
    run = RunRecord.from_published(tree(), suite_run.telemetry)
    played = [run.episodes.column("env_id").size, run.validations.column("env_id").size]
    assert played == [12, 4]
    assert result.read(suite_run.evaluation).controller_trainings == 16


@pytest.mark.parametrize(
    "change", ["train.price=1.0", "evaluate.eval_seeds=8", "prepare.samples=170"]
)
def test_headroom_of_other_params_or_data_is_refused(project: Workspace, change: str) -> None:
    before = project.evaluation.read_bytes()
    if change.startswith("prepare"):
        stages.prepare(tree(change), project)
    with pytest.raises(
        SimicError,
        match=r"headroom\.json: of other data, params or code than these; run simic headroom first",
    ):
        stages.evaluate(tree(change), project)
    assert project.evaluation.read_bytes() == before


def test_metrics_are_flat_few_and_those_of_the_standings(suite_run: Workspace) -> None:
    numbers = json.loads(suite_run.metrics.read_bytes())
    assert 4 <= len(numbers) <= 9 and all(
        isinstance(value, int | float) for value in numbers.values()
    )
    learned = result.read(suite_run.evaluation).standings["held_out"].policies["learned"]
    assert numbers["score"] == round(learned.score.estimate, 4)
    assert numbers["over_common_schedule"] == round(learned.over_common.estimate, 4)
    stage = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["evaluate"]
    assert [*stage["metrics"][0]] == [str(suite_run.metrics.relative_to(suite_run.root))]


def test_a_run_ends_with_the_four_lines_of_its_verdict(
    suite_run: Workspace, project: Workspace
) -> None:
    summary = run_summary.of(suite_run)
    score = result.read(suite_run.evaluation).standings["held_out"].policies["learned"].score
    expected = f"PPO scores {score.estimate:.1f} [{score.low:.1f}, {score.high:.1f}] points on 3 held-out tasks"
    assert expected in summary.verdict.what
    assert summary.verdict.record.startswith("The record is sound")
    [start] = starts.read(suite_run.telemetry / "run.json")
    assert summary.run == start.name
    assert [line.split()[0] for line in summary.lines] == [
        "what",
        "record",
        "replay",
        "learning",
        "run",
        "next",
    ]
    audited = durable.checked((suite_run.reports / "findings.json").read_bytes())

    def with_results(results: list[dict]) -> run_summary.RunSummary:
        (project.reports / "findings.json").write_bytes(
            durable.with_checksum({**audited, "results": results})
        )
        return run_summary.of(project)

    def with_finding(check: str, severity: str) -> run_summary.RunSummary:
        """Of that check alone, as a finding."""
        chosen = [row for row in audited["results"] if row["check"] == check]
        return with_results([row | {"status": "finding", "severity": severity} for row in chosen])

    sound = with_results([row for row in audited["results"] if row["status"] != "finding"])
    medium = with_finding("H1", "medium")
    high = with_finding("H1", "high")
    damaged = with_finding("X6", "critical")
    unsound = with_finding("C5", "critical")
    differing = with_finding("Z1", "critical")
    assert sound.headline == medium.headline == "no critical or high finding"
    assert "simic grow" in sound.next and "simic grow" in medium.next
    assert high.headline == "1 critical or high finding" and "findings at the top" in high.next
    assert (
        "simic doctor" in damaged.next
        and "repeat the stage" in unsound.next
        and "simic audit" in differing.next
    )
    summaries = (sound, medium, high, damaged, unsound, differing)
    assert [summary.alarming for summary in summaries] == [False, False, False, True, True, True]


def test_the_live_view_has_what_headroom_measured_for_these_params_alone(
    suite_run: Workspace,
) -> None:
    measured = result.read_headroom(suite_run.headroom).validation
    assert sorted(measured) == [
        "common",
        "patient",
        "static",
    ]  # no rule was tuned for these settings
    assert stages.baseline_scores(tree(), suite_run) == measured
    others = "prepare={task: gym, gym: {id: CartPole-v1}}", "train.episode_steps=8"
    assert (
        stages.baseline_scores(tree("train.price=1.0"), suite_run)
        == stages.baseline_scores(tree(*others), suite_run)
        == {}
    )


def test_headroom_shows_the_page_of_the_workspace(
    project: Workspace, monkeypatch: pytest.MonkeyPatch, simic: Simic
) -> None:
    asked: list[str] = []
    project.params.write_bytes((ROOT / "params.yaml").read_bytes())
    monkeypatch.setattr(
        engine, "run_chain", lambda tree, workspace, last, *rest: asked.append(last)
    )  # it is up to date
    code, out, _ = simic("headroom", "--out", "all.json", root=project.root)
    assert (code, asked) == (0, ["headroom"]) and out.startswith("# Headroom of suite\n")
    assert (project.root / "all.json").read_text() == project.headroom.read_text()


def test_the_evaluation_stands_beside_what_headroom_measured(suite_run: Workspace) -> None:
    found, floors = result.read(suite_run.evaluation), result.read_headroom(suite_run.headroom)
    measured = {"static", "best common schedule", "oracle per task"}
    played = {
        "learned",
        "learned_sampled",
        "blind",
        "static_final, equal epochs",
        "static_final, equal FLOPs",
    }
    assert list(found.standings) == ["held_out", "held_out_kinds"]
    assert all(each.policies.keys() == measured for each in floors.standings.values())
    assert all(each.policies.keys() == measured | played for each in found.standings.values())
    assert (
        found.rows == floors.rows and found.policies["static"].per_seed == floors.policies["static"]
    )
    assert found.episode_steps == floors.epochs == 10
    assert list(found.others) == list(floors.others) == ["6 epochs", "outside"]
    for name, own in found.others.items():
        assert own.epochs == (6 if name == "6 epochs" else 10)
        assert own.per_seed.keys() == {"learned"}
        assert all({"learned", "static"} < each.policies.keys() for each in own.standings.values())
