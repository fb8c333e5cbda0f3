"""A tiny suite through the real stages, and what is refused, said and recorded of it."""

import json

import pytest
import torch
import yaml

from simic import durable
from simic.agent import export
from simic.audit.record import RunRecord
from simic.errors import SimicError
from simic.evaluation import result
from simic.pipeline import engine, run_summary, stages
from simic.pipeline.paths import Workspace
from simic.telemetry import starts
from simic.training import checkpoint
from simic.training.learned import Learned
from simic.training.session import open_session
from tests.conftest import Simic
from tests.helpers import ROOT
from tests.pipeline.small_suite import tree


def test_the_controllers_cost_is_every_episode_that_was_played_while_it_was_trained(
    suite_run: Workspace,
) -> None:
    run = RunRecord.from_published(tree(), suite_run.telemetry)
    episodes = [run.episodes.column("env_id").size, run.validations.column("env_id").size]
    assert episodes == [12, 12]
    assert result.read(suite_run.evaluation).controller_trainings == 24


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


def test_policy_and_program_are_those_of_the_best_checkpoint_and_not_of_the_latest(
    project: Workspace,
) -> None:
    work = project.work(stages.fingerprint(tree(), project))
    with open_session(tree(), work, project.prepared) as session:
        first, *_, last = session.checkpoints.numbers()
        stages._publish(session, project, first, last)
    best, latest = (
        Learned.of(checkpoint.read_published(project.checkpoints, name))
        for name in ("best", "latest")
    )
    policy = Learned.load(project.models / "policy")
    assert (policy.iteration, latest.iteration) == (first, last) and first < last
    program = torch.export.load(project.models / "program" / export.PROGRAM).state_dict
    for name, tensor in best.policy.state_dict().items():
        assert torch.equal(policy.policy.state_dict()[name], tensor)
        assert torch.equal(program[f"policy.{name}"], tensor)
    scales = [found.normalizers.observation for found in (best, policy, latest)]
    assert torch.equal(scales[0].mean, scales[1].mean)
    assert torch.equal(scales[0].scale, program["scale"])
    assert torch.equal(scales[0].mean, program["mean"])
    assert not torch.equal(scales[0].mean, scales[2].mean)


def test_a_run_ends_with_the_four_lines_of_its_verdict(suite_run: Workspace) -> None:
    summary = run_summary.of(suite_run)
    score = result.read(suite_run.evaluation).standings["held_out"].policies["learned"].score
    expected = f"PPO scores {score.estimate:.1f} [{score.low:.1f}, {score.high:.1f}] points on 3 held-out tasks"
    assert expected in summary.verdict.what
    assert summary.verdict.record.startswith("The record is sound")
    [start] = starts.read(suite_run.telemetry / "run.json")
    assert summary.run == start.name
    assert list(summary.sentences) == ["what", "record", "replay", "learning", "run", "next"]


# By check and severity of the one finding: the headline, the remedy, and whether it alarms.
NO_FINDING = "no critical or high finding"
GRAVE = "1 critical or high finding"
SUMMARIES = {
    ("none", ""): (NO_FINDING, "simic grow", False),
    ("H1", "medium"): (NO_FINDING, "simic grow", False),
    ("H1", "high"): (GRAVE, "findings at the top", False),
    ("X6", "critical"): (GRAVE, "simic doctor", True),
    ("C5", "critical"): (GRAVE, "repeat the stage", True),
    ("Z1", "critical"): (GRAVE, "simic audit", True),
}


def test_what_to_do_next_follows_from_the_gravest_finding(project: Workspace) -> None:
    findings = project.reports / "findings.json"
    audited = durable.checked(findings.read_bytes())
    for (check, severity), (headline, remedy, alarming) in SUMMARIES.items():
        finding = {"status": "finding", "severity": severity}
        rows = [row for row in audited["results"] if row["status"] != "finding"]
        rows += [row | finding for row in audited["results"] if row["check"] == check]
        findings.write_bytes(durable.with_checksum({**audited, "results": rows}))
        summary = run_summary.of(project)
        assert (summary.headline, summary.alarming) == (headline, alarming), check
        assert remedy in summary.next and summary.passed is (headline == NO_FINDING), check


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
    assert stages.baseline_scores(tree("train.price=1.0"), suite_run) == {}


def test_headroom_shows_the_page_of_the_workspace(
    project: Workspace, monkeypatch: pytest.MonkeyPatch, simic: Simic
) -> None:
    stages_run: list[str] = []
    project.params.write_bytes((ROOT / "params.yaml").read_bytes())
    # It is up to date.
    monkeypatch.setattr(engine, "run_chain", lambda *arguments: stages_run.append(arguments[2]))
    code, out, _ = simic("headroom", "--out", "all.json", root=project.root)
    assert (code, stages_run) == (0, ["headroom"]) and out.startswith("# Headroom of suite\n")
    assert (project.root / "all.json").read_text() == project.headroom.read_text()


def test_the_evaluation_stands_beside_what_headroom_measured(suite_run: Workspace) -> None:
    evaluation = result.read(suite_run.evaluation)
    headroom = result.read_headroom(suite_run.headroom)
    measured = {"static", "patient", "best common schedule", "oracle per task"}
    measured |= {"linear classifier", "static tables, [64, 64]", "everything at once"}
    trained = {f"static_final, equal {unit}" for unit in ("epochs", "FLOPs")}
    trained |= {"learned", "learned_sampled", "blind"}
    assert list(evaluation.standings) == ["held_out", "held_out_kinds"]
    for group, standings in evaluation.standings.items():
        assert headroom.standings[group].policies.keys() == measured
        assert standings.policies.keys() == measured | trained
    assert evaluation.rows == headroom.rows
    assert evaluation.policies["static"].per_seed == headroom.policies["static"]
    assert evaluation.episode_steps == headroom.epochs == 10
    lengths = {name: length.epochs for name, length in evaluation.others.items()}
    assert lengths == {"6 epochs": 6, "outside": 10} and [*headroom.others] == [*lengths]
    for extra in evaluation.others.values():
        assert extra.per_seed.keys() == {"learned"}
        assert all(
            {"learned", "static"} < standings.policies.keys()
            for standings in extra.standings.values()
        )
