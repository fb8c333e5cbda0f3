"""reports/resume.json of `simic verify-resume`: trainings that were killed again and again, beside one that was not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from simic import durable
from simic.audit.provenance import Provenance
from simic.evaluation.result import Frozen

ENOUGH_KILLS = 50  # for a claim; fewer show how it is done
COMMAND = "simic verify-resume"


class ResumeSubject(Frozen):
    """Identify what was tried; the certificate says nothing of other code, params, data or machines."""

    code_sha256: str | None  # of all that the stage train runs
    params_sha256: str | None  # of the project, which the small training is composed from
    data_sha256: str | None
    machine: Mapping[str, str]  # versions of libraries, device, vector instructions, threads

    @classmethod
    def of(cls, run: Provenance) -> "ResumeSubject":
        """Return the subject of an audited run."""
        return cls(
            code_sha256=run.code_sha256.get("train"),
            params_sha256=run.params_sha256,
            data_sha256=run.data_sha256,
            machine={**run.versions, **run.hardware},
        )

    def differences(self, other: "ResumeSubject") -> tuple[str, ...]:
        """Name the differences to another subject."""
        fields = {"code": "code_sha256", "params": "params_sha256", "data": "data_sha256"}
        changed = [name for name, field in fields.items() if getattr(self, field) != getattr(other, field)]
        names = sorted(self.machine.keys() | other.machine.keys())
        return (*changed, *(name for name in names if self.machine.get(name) != other.machine.get(name)))


class ResumeCertificate(Frozen):
    """Count over all killed trainings; ``failures`` are those that did not come to their end."""

    format: Literal[1] = 1
    subject: ResumeSubject
    trained: str  # what, in words
    seed: int  # of the moments
    trainings: int  # each killed until it was done
    kills: Mapping[str, int]  # by where they fell
    compared_files: int  # of all trainings
    compared_bytes: int
    differing_bytes: int
    differing: tuple[str, ...]  # the first files
    retrained_beyond_one: int  # iterations, beyond the one that a kill cut short
    failures: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Tell whether every training came to the same end, and none repeated work."""
        return not (self.differing_bytes or self.differing or self.retrained_beyond_one or self.failures)

    @property
    def killed(self) -> int:
        """Count all kills."""
        return sum(self.kills.values())

    @property
    def result(self) -> str:
        """Return the result in one line."""
        return (
            f"{self.killed} kills in {self.trainings} trainings: "
            f"{self.differing_bytes} of {self.compared_bytes} bytes differ, "
            f"{self.retrained_beyond_one} iterations trained again beyond the one cut short, "
            f"{len(self.failures)} trainings failed"
        )

    def content(self) -> bytes:
        """Return the content of the file, with a checksum."""
        return durable.with_checksum(self.model_dump(mode="json"))

    def page(self) -> str:
        """Return the certificate for a terminal."""
        subject = self.subject
        where = ", ".join(f"{count} {name}" for name, count in self.kills.items())
        lines = [
            f"trained    {self.trained}",
            f"kills      {self.killed} by SIGKILL in {self.trainings} trainings ({where}), seed {self.seed}",
            f"compared   {self.compared_files} files, {self.compared_bytes} bytes: checkpoints/, models/, "
            "telemetry/ and the training seal without wall times and starts; log and checkpoints of the work directory",
            f"differ     {self.differing_bytes} bytes{''.join(f'; {name}' for name in self.differing)}",
            f"retrained  {self.retrained_beyond_one} iterations beyond the one that a kill cut short",
            *(f"failed     {text}" for text in self.failures),
            f"machine    {', '.join(f'{name} {value}' for name, value in subject.machine.items())}",
            f"code       {subject.code_sha256}",
            f"params     {subject.params_sha256}",
            f"data       {subject.data_sha256}",
            f"verdict    {'exact: every byte is that of a training never killed' if self.sound else 'NOT exact'}",
        ]
        return "\n".join(lines)


def read(path: Path) -> ResumeCertificate | str | None:
    """Return the certificate, the reason why it cannot be read, or None where there is none."""
    if not path.exists():
        return None
    try:
        return ResumeCertificate.model_validate(durable.checked(path.read_bytes()))
    except (OSError, ValueError, ValidationError) as error:
        return f"{path.name} cannot be read: {str(error).splitlines()[0]}"
