"""`simic verify-resume` counts kills, bytes and work that was done again, and certifies one code and machine."""

import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from simic import cli
from simic.audit import report, resume_certificate
from simic.audit.provenance import trace
from simic.audit.resume_certificate import ResumeCertificate, ResumeSubject
from simic.errors import SimicError
from simic.pipeline import dvc_record, engine, lives, stages, verify_resume
from simic.pipeline.paths import Workspace
from tests.pipeline.small_suite import tree


@dataclass
class Scripted:
    """A life as a script has it."""

    exitcode: int = 0
    begun: list[int] = field(default_factory=list)
    said: str = ""
    seconds: float = 1.0
    killed: bool = False
    counts: dict[str, int] = field(
        default_factory=lambda: {"step": 30, "checkpoint": 9, "record": 9, "publication": 20}
    )


def killed(*begun: int) -> Scripted:
    return Scripted(-9, list(begun), killed=True)


@pytest.fixture
def project(suite_run: Workspace, tmp_path: Path) -> Workspace:
    """Of a small suite: params, prepared data and a published run."""
    found = Workspace(Path(shutil.copytree(suite_run.root, tmp_path / "project")))
    found.params.write_text(yaml.safe_dump(tree().model_dump(mode="json")))
    return found


@pytest.fixture
def proof(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How trainings are tallied whose lives are as scripted; what they leave is a file."""

    def tally(kills: int, *script: Scripted, left: dict[str, bytes] | None = None) -> verify_resume.KillTally:
        script_of = iter([Scripted(), *script])
        contents = iter([{"a": b"123"}, *([left] if left is not None else []), *[{"a": b"123"}] * 9])
        monkeypatch.setattr(lives, "live", lambda *given: next(script_of))
        shutil.rmtree(project.root.with_name("twin"), ignore_errors=True)  # of a tally before
        said = list[str]()
        return verify_resume.Proof(project, kills, 1, said.append, left=lambda _: next(contents)).run()

    return tally


def test_an_iteration_that_a_kill_cut_short_may_be_trained_again_and_no_other(proof: Any) -> None:
    assert proof(2, killed(0, 1), killed(1, 2), Scripted(0, [2])).retrained == 0
    assert proof(2, killed(0, 1, 2), killed(1, 2), Scripted(0, [1, 2])).retrained == 2


def test_kills_are_counted_over_trainings_and_lives_that_outlive_their_moment_are_not(proof: Any) -> None:
    tally = proof(3, killed(0), Scripted(0, [0, 1, 2]), killed(0), killed(0), Scripted(0, [0, 1, 2]))
    assert (sum(tally.kills.values()), tally.trainings, len(tally.partings)) == (3, 2, 2)


def test_a_training_that_refuses_to_go_on_is_a_failure_and_ends_it(proof: Any) -> None:
    tally = proof(5, killed(0), Scripted(2, [], "simic: refused"))
    assert tally.failures == ["training 1: simic: refused"] and tally.trainings == 1


def test_bytes_that_differ_are_counted(proof: Any) -> None:
    tally = proof(1, killed(0), Scripted(0, [0]), left={"a": b"133", "b": b"xx"})
    [parting] = tally.partings
    assert parting == verify_resume.Parting(1, 3, 3, ("a (1)", "b (2)"))


@pytest.mark.parametrize(
    ("got", "count"),
    [({}, 3), ({"a": b"12"}, 1), ({"a": b"1234"}, 1), ({"a": b"123", "b": b""}, 1), ({"a": b"123"}, 0)],
)
def test_a_file_that_is_cut_longer_missing_or_new_differs(got: dict[str, bytes], count: int) -> None:
    assert verify_resume.apart({"a": b"123"}, got).differing_bytes == count


def test_what_differs_between_equal_runs_is_left_out_and_nothing_else(project: Workspace) -> None:
    work = project.state / "work" / "abc"
    (work / "checkpoints" / "000001").mkdir(parents=True)
    (work / "checkpoints" / "000001" / "manifest.json").touch()
    (work / "checkpoints" / ".000000.1.old").mkdir()
    (work / "checkpoints" / ".000000.1.old" / "manifest.json").touch()
    (work / "run.json").touch()
    found = verify_resume.contents(project)
    names = {Path(name).name for name in found}
    assert not names & {"timing.jsonl", "run.json"}
    assert json.loads(found["reports/seals/train.json"])["apart"] == {}
    assert ".simic/work/abc/checkpoints/000001/manifest.json" in found and not any(".old" in name for name in found)
    for folder in (project.checkpoints, project.models, project.telemetry):
        files = {path.name for path in folder.rglob("*") if path.is_file()} - {"timing.jsonl", "run.json"}
        assert files and files <= names


def test_moments_are_drawn_from_the_seed(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "live", lambda *given: Scripted())

    def drawn(seed: int, begun: int) -> list[lives.Moment]:
        shutil.rmtree(project.root.with_name("twin"), ignore_errors=True)
        found = verify_resume.Proof(project, 1, seed, print, left=lambda _: {})
        return [found._moment(begun) for _ in range(40)]

    assert drawn(1, 0) == drawn(1, 0) != drawn(2, 0)
    assert {moment.where for moment in drawn(1, 0)} == {"step", "checkpoint", "record", "any time"}
    assert "publication" in {moment.where for moment in drawn(1, 2)}
    assert {moment.delay_seconds > 0 for moment in drawn(1, 0)} == {True, False}


def test_it_certifies_this_code_and_this_machine(project: Workspace) -> None:
    small = tree()
    found = verify_resume.verify(small, project, 1, 1, print)
    assert found.sound and found.killed == 1 and found.compared_bytes > 10_000
    assert resume_certificate.read(project.resume) == found
    provenance, _ = trace(small, project.root)
    assert found.subject.differences(ResumeSubject.of(provenance)) == ()


def test_code_that_changes_meanwhile_is_certified_by_nobody(
    project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Done:
        def __init__(self, begun: Workspace, *_: Any) -> None:
            self.twin = project

        def run(self) -> verify_resume.KillTally:
            return verify_resume.KillTally()

    hashes = iter([{"code_sha256": "a"}, {"code_sha256": "b"}])
    monkeypatch.setattr(verify_resume, "Proof", Done)
    full = {"params_sha256": "p", "data_sha256": "d"}
    monkeypatch.setattr(verify_resume, "_hashes", lambda *given: next(hashes) | full)
    with pytest.raises(SimicError, match="changed while trainings were killed"):
        verify_resume.verify(tree(), project, 1, 1, print)
    assert not project.resume.exists()


def certificate(**changes: Any) -> ResumeCertificate:
    subject = ResumeSubject(code_sha256="a", params_sha256="b", data_sha256="c", machine={})
    values: dict[str, Any] = {"seed": 1, "trainings": 1, "kills": {"step": 3}, "compared_files": 1}
    values |= {"compared_bytes": 9, "differing_bytes": 0, "differing": (), "retrained_beyond_one": 0}
    return ResumeCertificate(subject=subject, trained="a small training", **values | changes)


@pytest.mark.parametrize(("differing", "code"), [(0, 0), (1, 1)])
def test_the_exit_code_says_whether_it_is_exact(
    differing: int, code: int, project: Workspace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = list[tuple]()

    def verify(*given: Any) -> ResumeCertificate:
        asked.append(given[2:4])
        return certificate(differing_bytes=differing)

    monkeypatch.setattr(verify_resume, "verify", verify)
    monkeypatch.chdir(project.root)
    monkeypatch.setattr(sys, "argv", ["simic", "verify-resume", "--kills", "3", "--seed", "7"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == code and asked == [(3, 7)]
    assert f"differ     {differing} bytes" in capfd.readouterr().out


def test_a_report_without_the_newest_certificate_is_out_of_date(project: Workspace) -> None:
    assert not engine.tried_since(project)
    project.resume.write_bytes(certificate().to_json())
    assert engine.tried_since(project)
    told = json.loads(project.certificate.read_text())
    project.certificate.write_text(json.dumps(told | {"resume": certificate().model_dump(mode="json")}))
    assert not engine.tried_since(project)
    project.resume.write_bytes(certificate(trainings=2).to_json())
    assert engine.tried_since(project)
    project.resume.write_bytes(b"{}")
    assert engine.tried_since(project)


def test_the_audit_is_done_again_for_a_newer_certificate_and_else_it_is_up_to_date(
    project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()
    monkeypatch.setattr(dvc_record, "is_stale", lambda *_: False)
    monkeypatch.setattr(dvc_record, "commit", lambda *_: None)
    monkeypatch.setattr(engine, "perform", lambda name, *_: ran.append(name))

    def refresh(name: str) -> None:
        engine.refresh(name, project, engine.Execution(), lambda line: None)

    refresh("audit")
    assert ran == []
    project.resume.write_bytes(certificate().to_json())
    refresh("evaluate")
    assert ran == []
    refresh("audit")
    assert ran == ["audit"]


def test_the_audit_puts_the_certificate_into_the_report(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = list[Any]()
    monkeypatch.setattr(report, "write_report", lambda run, folder: reported.append(run.certificate.resume))
    quiet = tree("audit.certify=false")
    stages.audit(quiet, project)
    project.resume.write_bytes(certificate().to_json())
    stages.audit(quiet, project)
    assert reported == [None, certificate()]
