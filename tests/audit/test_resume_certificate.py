"""What is said of trainings that were killed: whole or not read, and about one code, data, params and machine."""

import pytest

from simic.audit import report
from simic.audit.findings import Status
from simic.audit.resume_certificate import COMMAND, read

from .synthetic import certificate, result, tried


def with_resume(plant, resume):
    return plant.attribute(certificate=certificate().model_copy(update={"resume": resume})).run


def test_it_is_read_as_it_was_written_and_one_changed_digit_is_noticed(tmp_path):
    path = tmp_path / "resume.json"
    assert read(path) is None
    path.write_bytes(tried().content())
    assert read(path) == tried()
    path.write_bytes(tried().content().replace(b'"differing_bytes": 0', b'"differing_bytes": 1'))
    assert read(path) == "resume.json cannot be read: its checksum does not match"
    assert "NOT exact" in tried(differing_bytes=1).page() and "NOT" not in tried().page() and "exact" in tried().page()


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("code_sha256", "0", "code"),
        ("data_sha256", "0", "data"),
        ("machine", {"python": "3.11", "torch": "2.13", "device": "cpu", "threads": "2"}, "threads"),
        ("machine", {"python": "3.11", "torch": "2.13", "device": "cpu"}, "threads"),
    ],
)
def test_of_anything_else_it_says_nothing(plant, field, value, named):
    other = tried(subject=tried().subject.model_copy(update={field: value}))
    found = result(with_resume(plant, other), "X1")
    assert (found.status, found.measured) == (Status.NOT_EVALUATED, f"tried with other {named}: {COMMAND}")


def test_without_one_or_with_too_few_kills_the_command_is_named(plant):
    for resume in (None, "resume.json cannot be read: damaged", tried(kills={"step": 49})):
        found = result(with_resume(plant, resume), "X1")
        assert found.status is Status.NOT_EVALUATED and COMMAND in found.measured, resume


def test_the_report_says_what_was_tried_or_how(plant):
    rows = dict(report.provenance_rows(plant.run))
    assert rows["killed and resumed"].startswith("a small training: 50 kills in 6 trainings: 0 of 3000 bytes differ")
    for resume, said in ((None, "not tried; "), ("cannot be read", "cannot be read; ")):
        assert dict(report.provenance_rows(with_resume(plant, resume)))["killed and resumed"] == said + COMMAND
