"""What MLflow is still to be told, one file for each run in .simic/mlflow-owed: it is there until all of it is told."""

import logging
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from simic import durable
from simic.pipeline import mlflow_models, mlflow_results
from simic.pipeline.mlflow_store import MlflowRun, Point, RunIdentity
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from simic.training.observers import EndStatus

FOLDER = "mlflow-owed"
PATIENCE_SECONDS = 60.0  # with another process that tells it

_log = logging.getLogger(__name__)


class Ended(BaseModel, frozen=True):
    """A training run that has ended, with all its points: those that MLflow has are not sent again. ``published`` is
    the digest of the checkpoints whose models are to be there; null where nothing was published.
    """

    identity: RunIdentity
    points: tuple[Point, ...]
    status: EndStatus
    published: str | None = None


class Report(BaseModel, frozen=True):
    """An audit; ``sha256`` is that of its findings.json."""

    tags: Mapping[str, str]
    sound: bool
    sha256: str


class Owed(BaseModel, frozen=True):
    """All of one run."""

    training: Ended | None = None
    report: Report | None = None


def file_of(workspace: Workspace, name: str) -> Path:
    """Where the debt of the run of that name is."""
    return workspace.state / FOLDER / f"{name}.json"


def read(file: Path) -> Owed:
    """Nothing where there is none. A damaged one is renamed and said: it can never be told."""
    if not file.exists():
        return Owed()
    try:
        return parse(file.read_bytes())
    except ValueError:
        aside = file.rename(file.with_suffix(".damaged"))
        _log.warning("%s: damaged, so what MLflow lacks of run %s stays missing there", aside, file.stem)
        return Owed()


def parse(content: bytes) -> Owed:
    """ValueError for anything but what ``write`` wrote."""
    return Owed.model_validate(durable.checked(content))


def write(workspace: Workspace, name: str, owed: Owed) -> None:
    """In place of what was owed for that run; OSError as the system reports it."""
    file = file_of(workspace, name)
    if owed == Owed():
        file.unlink(missing_ok=True)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.replace_file(file, durable.with_checksum(owed.model_dump(mode="json")))


def settle(workspace: Workspace) -> None:
    """Tells MLflow what it lacks of every run, the oldest first; raises what MLflow raises, and the rest waits."""
    files = sorted((workspace.state / FOLDER).glob("*.json"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    for file in files:
        settle_run(workspace, file.stem)


def settle_run(workspace: Workspace, name: str) -> None:
    """The same for one run."""
    with durable.locked(workspace.state / f"{FOLDER}.lock", "tells MLflow what it lacks", PATIENCE_SECONDS):
        file = file_of(workspace, name)
        owed = read(file)
        if owed.training is not None:
            _tell(workspace, owed.training)
        if owed.report is not None:
            _report(workspace, name, owed.report)
        file.unlink(missing_ok=True)


def _report(workspace: Workspace, name: str, report: Report) -> None:
    findings = workspace.reports / "findings.json"
    if findings.exists() and durable.sha256(findings) == report.sha256:
        mlflow_results.send_report(workspace, report.tags, report.sound)
    else:
        _log.warning("MLflow will not have the report of run %s: reports/ are those of another audit now", name)


def _tell(workspace: Workspace, ended: Ended) -> None:
    run = MlflowRun(workspace, ended.identity)
    run.log(ended.points)
    run.ended(ended.status)
    if ended.published is None:
        return
    if ended.published == mlflow_models.checkpoint_digest(workspace):
        mlflow_models.publish(run, workspace)
    else:
        name = run_name(ended.identity.fingerprint)
        _log.warning("MLflow will not have the policy of run %s: checkpoints/ are those of another run now", name)
