"""A real run, small: prepare, headroom, train under live checks, evaluate, audit; then one byte of it is damaged."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from markupsafe import escape

from simic import seals
from simic.audit.audit import checks, examine
from simic.audit.findings import Status, Verdict
from simic.audit.provenance import trace
from simic.audit.record import RunRecord
from simic.errors import SimicError
from simic.evaluation import result
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.telemetry import starts

from .settings import small

# What holds for any sound run, however short: replay, arithmetic of the reward, legality, records, hashes, revision.
MUST_PASS = ("R1", "P1", "P5", "M1", "M2", "X3", "X6", "X8", "X9", "X2")
MUST_PASS += tuple(check.id for check in checks(of_gym=False) if check.layer == "recompute")


def statuses(workspace):
    found = Verdict.from_json((workspace.reports / "findings.json").read_bytes())
    return {result.check: result for result in found.results}


def test_every_check_gave_a_result_and_the_sound_ones_pass(workspace):
    found = statuses(workspace)
    assert set(found) == {check.id for check in checks(of_gym=False)}
    for name in MUST_PASS:
        assert found[name].status is Status.PASS, (name, found[name].measured)
    assert found["F1"].status is not Status.NOT_EVALUATED
    assert found["R3"].status is Status.NOT_EVALUATED  # needs 5 updates
    assert found["X4"].status is Status.FINDING  # 4 seeds are no evidence


def test_live_checks_agree_with_the_audit_of_the_recorded_run(workspace, live):
    assert not [finding for finding in live.findings if finding.severity == "critical"]
    grave = {r.check for r in statuses(workspace).values() if r.status is Status.FINDING and r.severity == "critical"}
    assert grave <= {"F1"}  # four iterations need not beat never growing


def test_report_shows_the_run(workspace):
    page = (workspace.reports / "report.html").read_text(encoding="utf-8")
    for name in ("result", "gap", "learning", "health", "entropy", "rewards", "growth-0", "pareto"):
        assert f'id="{name}-t"' in page
    [start] = starts.read(workspace.telemetry / "run.json")
    assert f"<h1>Audit of {start.name}</h1>" in page and escape(start.command) in page
    manifest = json.loads((workspace.checkpoints / "latest" / "manifest.json").read_text())
    assert manifest["params_sha256"] in page and manifest["scalars"]["chain"] in page


WHEN = re.compile(r"<dt>(training started|training took)</dt><dd[^>]*>[^<]*</dd>")


@pytest.mark.slow
def test_equal_runs_have_reports_that_differ_by_when_they_were_made_alone(workspace, tmp_path):
    again = Workspace(tmp_path / "again")
    shutil.copytree(workspace.prepared, again.prepared)
    (again.reports / "seals").mkdir(parents=True)
    for place in (workspace.headroom, *(workspace.reports / "seals").glob("[ph]*.json")):
        shutil.copy(place, again.root / place.relative_to(workspace.root))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.dvc_record, "code_revision", lambda root: "abc")
        stages.train(small(), again)
    stages.evaluate(small(), again)
    stages.audit(small(), again)
    first, second = (WHEN.sub("", (each.reports / "report.html").read_text()) for each in (workspace, again))
    assert first == second
    for name in ("evaluation.json", "findings.json", "findings.sarif", "certificate.json"):
        assert (workspace.reports / name).read_bytes() == (again.reports / name).read_bytes()


def test_learning_curve_floors_are_measured_where_the_curve_is(workspace):
    """Show the scores on the validation tasks, not those of the held-out ones."""
    measured = result.read_headroom(workspace.headroom).validation
    page = (workspace.reports / "report.html").read_text(encoding="utf-8")
    assert f"static (never grows) {measured['static']:.1f}" in page


@pytest.fixture
def copy(workspace, tmp_path):
    shutil.copytree(workspace.root, tmp_path / "copy")
    return Workspace(tmp_path / "copy")


def examined(workspace, params=None):
    found, kept = trace(params or small(), workspace.root)
    run = replace(RunRecord.from_published(params or small(), workspace.telemetry), provenance=found, checkpoints=kept)
    return {each.check: each for each in examine(run, "x").results}


def test_other_params_than_those_trained_with_are_found(copy):
    found = examined(copy, small("train.ppo.learning_rate=0.01"))["X6"]
    assert found.status is Status.FINDING
    assert any("differ from params.yaml" in str(each["artifact"]) for each in found.evidence)


def test_an_edited_result_is_found_and_fails_after_the_report_is_written(copy):
    """Through the stage: headroom.json is read, and is what evaluation.json was computed from."""
    found = json.loads(copy.headroom.read_bytes())
    found["test_pct"][0] = [score + 1.0 for score in found["test_pct"][0]]
    copy.headroom.write_text(json.dumps(found), encoding="utf-8")
    (copy.reports / "report.html").unlink()
    with pytest.raises(SimicError, match=r"audit\.fail_on = 'medium': \d+ findings, worst"):
        stages.audit(small("audit.fail_on=medium"), copy)
    assert (copy.reports / "report.html").exists()
    assert statuses(copy)["X8"].status is Status.FINDING
    copy.headroom.unlink()
    stages.audit(small(), copy)
    assert statuses(copy)["X8"].status is Status.NOT_EVALUATED


@pytest.mark.parametrize(
    ("codes", "status"),
    [
        (["abc"], Status.PASS),
        (["abc", "abc"], Status.PASS),
        (["abc-dirty"], Status.FINDING),
        (["abc", "def"], Status.FINDING),
        ([""], Status.FINDING),
    ],
)
def test_the_origin_is_the_code_that_trained(codes, status, copy):
    """Judge the code of every start and resume, not that of the audit."""
    [start] = starts.read(copy.telemetry / "run.json")
    (copy.telemetry / "run.json").unlink()
    for code in codes:
        starts.note(copy.telemetry / "run.json", start.model_copy(update={"code": code}))
    seals.write(copy.root, "train", small())
    found = examined(copy)
    assert found["X2"].status is status
    assert found["X6"].status is Status.PASS
    found, _ = trace(small(), copy.root)
    assert found.origin.resumes == len(codes) - 1


def test_starts_that_are_not_readable_are_refused(copy):
    (copy.telemetry / "run.json").write_text("[{}]")
    with pytest.raises(SimicError, match="not the starts of a run"):
        examined(copy)
