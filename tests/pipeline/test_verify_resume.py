"""`simic verify-resume` counts kills, bytes and work that was done again, and certifies one code and machine."""

import json
import shutil
from typing import Any

import pytest

from simic.audit import report, resume_certificate
from simic.audit.provenance import trace
from simic.audit.resume_certificate import ResumeCertificate, ResumeSubject
from simic.errors import SimicError
from simic.pipeline import dvc_record, engine, stages, verify_resume
from simic.pipeline.paths import Workspace
from simic.pipeline.verify_resume import KillTally
from tests.audit.synthetic import tried
from tests.conftest import Simic
from tests.pipeline.small_suite import tree


def life(exitcode: int, *begun: int, said: str = "") -> verify_resume.Life:
    return verify_resume.Life(exitcode, [*begun], said, 1.0)


KILLED, WHOLE = life(-9, 0), life(0, 0, 1, 2)


@pytest.mark.parametrize(
    ("kills", "script", "left", "expected"),
    [
        # An iteration that a kill cut short may be trained again, and no other.
        (2, [life(-9, 0, 1), life(-9, 1, 2), life(0, 2)], b"123", {"retrained_beyond_one": 0}),
        (2, [life(-9, 0, 1, 2), life(-9, 1, 2), life(0, 1, 2)], b"123", {"retrained_beyond_one": 2}),
        # Kills are counted over trainings; lives that outlive their moment are not.
        (3, [KILLED, WHOLE, KILLED, KILLED, WHOLE], b"123", {"kills": 3, "trainings": 2}),
        # A training that refuses to go on is a failure and ends it.
        (5, [KILLED, life(2, said="simic: refused")], b"123", {"failures": ["training 1: simic: refused"]}),
        (1, [KILLED, WHOLE], b"133", {"differing": ["a (1)"], "compared_bytes": 3, "differing_bytes": 1}),
    ],
)
def test_what_lives_came_to_is_counted(
    kills: int, script: list, left: bytes, expected: dict, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives, found = iter([life(0), *script]), iter([{"a": b"123"}])
    monkeypatch.setattr(verify_resume, "live", lambda *given: next(lives))
    monkeypatch.setattr(verify_resume, "contents", lambda _: next(found, {"a": left}))
    tally, _ = verify_resume.kill_trainings(project, kills, 1, print)
    assert vars(tally).items() >= expected.items()


@pytest.mark.parametrize(
    ("got", "count"),
    [({}, 3), ({"a": b"12"}, 1), ({"a": b"1234"}, 1), ({"a": b"123", "b": b""}, 1), ({"a": b"123"}, 0)],
)
def test_a_file_that_is_cut_longer_missing_or_new_differs(got: dict[str, bytes], count: int) -> None:
    assert KillTally().compare({"a": b"123"}, got) == count


def test_a_life_that_fails_says_why(project: Workspace) -> None:
    shutil.rmtree(project.prepared)
    failed = verify_resume.live(project.root, None, 0)
    assert (failed.exitcode, failed.begun) == (2, []) and failed.said.endswith("run simic prepare first")


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
    hashes = iter([{"code_sha256": "a"}, {"code_sha256": "b"}])
    monkeypatch.setattr(verify_resume, "kill_trainings", lambda *given: (KillTally(), project))
    full = {"params_sha256": "p", "data_sha256": "d"}
    monkeypatch.setattr(verify_resume, "_hashes", lambda *given: next(hashes) | full)
    with pytest.raises(SimicError, match="changed while trainings were killed"):
        verify_resume.verify(tree(), project, 1, 1, print)
    assert not project.resume.exists()


@pytest.mark.parametrize(("differing", "code"), [(0, 0), (1, 1)])
def test_the_exit_code_says_whether_it_is_exact(
    differing: int, code: int, project: Workspace, monkeypatch: pytest.MonkeyPatch, simic: Simic
) -> None:
    asked = list[tuple]()

    def verify(*given: Any) -> ResumeCertificate:
        asked.append(given[2:4])
        return tried(differing_bytes=differing)

    monkeypatch.setattr(verify_resume, "verify", verify)
    found, out, _ = simic("verify-resume", "--kills", 3, "--seed", 7, root=project.root)
    assert found == code and asked == [(3, 7)] and f"differ     {differing} bytes" in out


def test_the_audit_is_done_again_for_a_newer_certificate_and_else_it_is_up_to_date(
    project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dvc_record, "is_stale", lambda *_: False)
    monkeypatch.setattr(dvc_record, "commit", lambda *_: None)
    monkeypatch.setattr(engine, "perform", lambda *_: None)

    def runs(name: str) -> bool:
        return engine.refresh(name, project, engine.Execution(), lambda line: None)

    assert not runs("audit")
    project.resume.write_bytes(tried().content())
    assert runs("audit") and not runs("evaluate")
    told = json.loads(project.certificate.read_text())
    project.certificate.write_text(json.dumps(told | {"resume": tried().model_dump(mode="json")}))
    assert not runs("audit")
    for newer in (tried(trainings=2).content(), b"{}"):
        project.resume.write_bytes(newer)
        assert runs("audit")


def test_the_audit_puts_the_certificate_into_the_report(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = list[Any]()
    monkeypatch.setattr(report, "write_report", lambda run, folder: reported.append(run.certificate.resume))
    quiet = tree("audit.certify=false")
    stages.audit(quiet, project)
    project.resume.write_bytes(tried().content())
    stages.audit(quiet, project)
    assert reported == [None, tried()]
