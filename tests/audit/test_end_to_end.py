"""A real run, small: prepare, headroom, train under live checks, evaluate, audit; then one byte of it is damaged."""

import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import torch
from markupsafe import escape

from simic import durable, params, seals
from simic.audit.audit import checks, examine
from simic.audit.findings import Status, Verdict
from simic.audit.live import LiveAudit
from simic.audit.provenance import trace
from simic.audit.record import RunRecord
from simic.audit.report import provenance_rows, write_report
from simic.errors import SimicError
from simic.evaluation import result
from simic.params import Params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.telemetry import starts, timing
from simic.training.observers import duration
from simic.training.resume import differences
from tests import standard

from .pages import sources, unexplained

ITERATIONS = 3
# What holds for any sound run, however short: replay, arithmetic of the reward, legality, records, hashes, revision.
MUST_PASS = ("R1", "P1", "P5", "M1", "M2", "X3", "X6", "X8", "X9", "X2")
MUST_PASS += tuple(check.id for check in checks() if check.layer == "recompute" and check.id != "C7")  # one task


def small(**audit):
    tree = standard.Params().model_dump()
    tree["train"] |= {"envs": 4, "episode_steps": 6, "batches_per_epoch": 1, "batch_size": 32, "iterations": ITERATIONS}
    tree["train"] |= {"validate_every": 2}
    tree["train"]["ppo"] |= {"minibatches": 2, "epochs": 2}
    tree["train"]["lifecycle"] |= {"training_dwell": 0}
    tree["headroom"] |= {"policies": ("static", "patient"), "schedules": 4, "search_tasks": 2, "floors": False}
    tree["evaluate"] |= {"eval_seeds": 2, "policies": ("learned",)}
    tree["runtime"] |= {"threads": 1, "progress": "none"}
    tree["audit"] |= {"certify": False, **audit}
    return Params.model_validate(tree)


class Kept(LiveAudit):
    """Remembers what it reported."""

    def __init__(self):
        super().__init__()
        self.findings = []

    def on_finding(self, finding):
        self.findings.append(finding)


@pytest.fixture(scope="module")
def live():
    return Kept()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, live):
    threads = torch.get_num_threads()
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    stages.prepare(small(), workspace)
    stages.headroom(small(), workspace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.dvc_record, "code_revision", lambda root: "abc")
        stages.train(small(), workspace, [live])
    stages.evaluate(small(), workspace)
    stages.audit(small(), workspace)
    yield workspace
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def statuses(workspace):
    found = Verdict.from_json((workspace.reports / "findings.json").read_bytes())
    return {result.check: result for result in found.results}


def test_every_check_gave_a_result_and_the_sound_ones_pass(workspace):
    found = statuses(workspace)
    assert set(found) == {check.id for check in checks()}
    for name in MUST_PASS:
        assert found[name].status is Status.PASS, (name, found[name].measured)
    assert found["F1"].status is not Status.NOT_EVALUATED
    assert found["R3"].status is Status.NOT_EVALUATED  # needs 5 updates
    assert found["X4"].status is Status.FINDING  # 2 seeds are no evidence


def test_live_checks_agree_with_the_audit_of_the_recorded_run(workspace, live):
    assert not [finding for finding in live.findings if finding.severity == "critical"]
    grave = {r.check for r in statuses(workspace).values() if r.status is Status.FINDING and r.severity == "critical"}
    assert grave <= {"F1"}  # three iterations need not beat never growing


def test_report_shows_the_run(workspace):
    page = (workspace.reports / "report.html").read_text(encoding="utf-8")
    for name in ("result", "gap", "learning", "health", "entropy", "rewards", "growth-0", "pareto"):
        assert f'id="{name}-t"' in page
    [start] = starts.read(workspace.telemetry / "run.json")
    assert f"<h1>Audit of {start.name}</h1>" in page and escape(start.command) in page
    manifest = json.loads((workspace.checkpoints / "latest" / "manifest.json").read_text())
    assert manifest["params_sha256"] in page and manifest["scalars"]["chain"] in page


def written(workspace):
    return {path.name: path.read_bytes() for path in workspace.reports.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_evaluating_and_auditing_again_give_the_same_bytes(copy):
    before = written(copy)
    for name in ("evaluation.json", "metrics.json", "report.html", "findings.json", "findings.sarif"):
        (copy.reports / name).unlink()
    stages.evaluate(small(), copy)
    stages.audit(small(), copy)
    assert written(copy) == before


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


def test_every_number_of_the_report_stands_in_the_files_that_are_bound(workspace):
    page = (workspace.reports / "report.html").read_text(encoding="utf-8")
    findings, evaluation = (json.loads((workspace.reports / f"{name}.json").read_bytes()) for name in
                            ("findings", "evaluation"))  # fmt: skip
    bound = [*(workspace.reports / "seals").glob("*.json"), *workspace.checkpoints.glob("*/manifest.json")]
    rest = [json.loads(path.read_bytes()) for path in (*bound, workspace.telemetry / "run.json")]
    hashes = [durable.sha256(path) for path in workspace.checkpoints.glob("*/state.safetensors")]
    made = [params.digest(json.loads(path.read_bytes())["code"]) for path in bound[:4]]
    seconds = sum(sum(list(vars(row).values())[1:]) for row in timing.read(workspace.telemetry / "timing.jsonl"))
    begun = rest[-1]["starts"]
    first = datetime.fromtimestamp(begun[0]["unix_seconds"], UTC)
    when = [f"{first:%Y-%m-%d %H:%M:%S}", duration(seconds), len(begun) - 1]
    defaults, own = (tree.model_dump(mode="json", exclude={"audit", "runtime"}) for tree in (Params(), small()))
    changed = [defaults, len(differences(defaults, own))]
    found = sources(findings, evaluation, [rest, hashes, made, when, changed])
    assert unexplained(page, found) == {}


def test_learning_curve_floors_are_measured_where_the_curve_is(workspace):
    """Show the scores on the validation tasks, not those of the held-out ones."""
    measured = result.read_headroom(workspace.headroom).validation
    page = (workspace.reports / "report.html").read_text(encoding="utf-8")
    assert f"static (never grows) {measured['static']:.1f}" in page


@pytest.fixture
def copy(workspace, tmp_path):
    shutil.copytree(workspace.root, tmp_path / "copy")
    return Workspace(tmp_path / "copy")


def published(workspace, params):
    found, kept = trace(params, workspace.root)
    return replace(RunRecord.from_published(params, workspace.telemetry), provenance=found, checkpoints=kept)


def examined(workspace, params=None):
    run = published(workspace, params or small())
    return {r.check: r for r in examine(replace(run, evaluation=result.read(workspace.evaluation)), "x").results}


def test_other_params_than_those_trained_with_are_found(copy):
    tree = small().model_dump()
    tree["train"]["ppo"]["learning_rate"] *= 2
    found = examined(copy, Params.model_validate(tree))["X6"]
    assert found.status is Status.FINDING
    assert any("differ from params.yaml" in str(each["artifact"]) for each in found.evidence)


def test_an_edited_result_is_found_and_fails_after_the_report_is_written(copy):
    """Through the stage: headroom.json is read, and is what evaluation.json was computed from."""
    found = json.loads(copy.headroom.read_bytes())
    found["test_pct"][0] = [score + 1.0 for score in found["test_pct"][0]]
    copy.headroom.write_text(json.dumps(found), encoding="utf-8")
    (copy.reports / "report.html").unlink()
    with pytest.raises(SimicError, match=r"audit\.fail_on = 'medium': \d+ findings, worst"):
        stages.audit(small(fail_on="medium"), copy)
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
    assert str(len(codes) - 1) in dict(provenance_rows(published(copy, small())))["resumes"]


def test_starts_that_are_not_readable_are_refused(copy):
    (copy.telemetry / "run.json").write_text("[{}]")
    with pytest.raises(SimicError, match="not the starts of a run"):
        examined(copy)


def test_a_run_without_evaluation_says_so(copy):
    copy.evaluation.unlink()
    verdict = write_report(published(copy, small()), copy.reports)
    assert {r.status for r in verdict.results if r.check[0] == "F"} == {Status.NOT_EVALUATED}
