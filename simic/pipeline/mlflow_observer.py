"""Log a training run to MLflow while it goes on, and its audit; training never waits for MLflow for long.

At each checkpoint MLflow is sent the iterations of the telemetry log that it lacks. A failure is reported once, as a
warning and a finding, and the next contact catches up. How a run ended, its models and its report are noted in a file
(``Debt``) before they are sent, so that a later command sends what this one could not.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel

from simic import durable, params
from simic.pipeline import mlflow_models, mlflow_results, mlflow_store
from simic.pipeline.mlflow_store import LOG, TROUBLE, MlflowRun, RunIdentity, in_one_line, warn
from simic.pipeline.paths import Workspace
from simic.telemetry import recorder
from simic.telemetry.naming import run_name
from simic.telemetry.rows import FindingRow
from simic.training.observers import EndStatus, Observer, RunInfo

PAUSE = 20.0  # times what a failed attempt took, until the next: at most a twentieth of the time goes into trying
PATIENCE_SECONDS = 60.0  # with another process that tells MLflow what it lacks


class MlflowObserver(Observer):
    """Log one training run; a failure of MLflow is reported, never raised."""

    def __init__(
        self,
        workspace: Workspace,
        tree: params.Params,
        tags: Mapping[str, str],
        splits: tuple[Mapping[str, str], ...],
    ):
        self._workspace, self._tree, self._tags, self._splits = workspace, tree, tags, splits
        self._identity: RunIdentity | None = None
        self._report: Callable[[FindingRow], None] | None = None
        self._log = Path()
        self._run: MlflowRun | None = None
        self._in_trouble = False
        self._not_before = 0.0  # on the monotonic clock: when MLflow is tried again

    def on_start(self, info: RunInfo) -> None:
        self._log, self._report = info.work_dir / recorder.FOLDER, info.report
        self._identity = RunIdentity(
            fingerprint=info.work_dir.name,
            params=mlflow_store.params_of(self._tree),
            tags=self._tags,
            dataset=self._tree.prepare.dataset,
            data_sha256=info.data_sha256,
            splits=self._splits,
        )

        def first() -> None:
            settle(self._workspace)
            self._send()

        self._attempt(first)

    def on_checkpoint(self, path: Path, iteration: int) -> None:
        if time.monotonic() >= self._not_before:
            self._attempt(self._send, iteration - 1)

    def on_end(self, status: EndStatus) -> None:
        self._report = None  # the log of findings closes now
        if self._identity is not None:
            self._settle(status=status)

    def publish(self) -> None:
        """Log checkpoints and policy, once they are in their place."""
        self._settle(published=mlflow_models.checkpoint_digest(self._workspace))

    def _settle(self, **owed: object) -> None:
        assert self._identity is not None
        name = run_name(self._identity.fingerprint)
        note(self._workspace, name, identity=self._identity, **owed)
        self._attempt(lambda: settle_run(self._workspace, name))

    def _send(self) -> None:
        """Send what the log has and MLflow lacks; find or make the run at the first call that succeeds."""
        if self._run is None:
            assert self._identity is not None
            run = MlflowRun(self._workspace, self._identity)
            run.started()
            self._run = run
        self._run.log(self._log)

    def _attempt(self, call: Callable[[], None], iteration: int = -1) -> None:
        began = time.monotonic()
        try:
            mlflow_store.refuse_unusable(self._workspace)
            call()
            self._in_trouble = False
        except TROUBLE as error:
            self._run = None  # the store may be another when it is back
            self._not_before = time.monotonic() + PAUSE * (time.monotonic() - began)
            if self._in_trouble:
                return
            self._in_trouble = True
            warn(error)
            if self._report is not None:
                message = f"logging to MLflow failed: {in_one_line(error)}"
                self._report(FindingRow(iteration=iteration, check="tracking_gone", severity="low", message=message))


class Report(BaseModel, frozen=True):
    """Describe an audit; ``sha256`` is that of its findings.json."""

    tags: Mapping[str, str]
    sound: bool
    sha256: str


class Debt(BaseModel, frozen=True):
    """Note what MLflow lacks of one run: how it ended, with all metrics until then; the models of the checkpoints with
    the digest ``published``; the report.
    """

    identity: RunIdentity | None = None
    status: EndStatus | None = None
    published: str | None = None
    report: Report | None = None


def note(workspace: Workspace, name: str, **owed: object) -> None:
    """Add to what is owed for the run of that name; OSError as the system reports it."""
    debt = _owed(workspace, name).model_copy(update=owed)
    file = workspace.mlflow_debt(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    durable.replace_file(file, durable.with_checksum(debt.model_dump(mode="json")))


def _owed(workspace: Workspace, name: str) -> Debt:
    file = workspace.mlflow_debt(name)
    if not file.exists():
        return Debt()
    try:
        return Debt.model_validate(durable.checked(file.read_bytes()))
    except ValueError:
        LOG.warning("%s: damaged, so what MLflow lacks of run %s stays missing there", file, name)
        return Debt()


def settle(workspace: Workspace) -> None:
    """Log what MLflow lacks of every run, the oldest first; raise what MLflow raises, and the rest waits."""
    files = sorted(workspace.mlflow_debts.glob("*.json"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    for file in files:
        settle_run(workspace, file.stem)


def settle_run(workspace: Workspace, name: str) -> None:
    """Log what MLflow lacks of one run."""
    with durable.locked(workspace.state / "mlflow-owed.lock", "tells MLflow what it lacks", PATIENCE_SECONDS):
        debt = _owed(workspace, name)
        if debt.identity is not None:
            _settle_training(workspace, MlflowRun(workspace, debt.identity), debt)
        if debt.report is not None:
            findings = workspace.reports / "findings.json"
            if findings.exists() and durable.sha256(findings) == debt.report.sha256:
                mlflow_results.send_report(workspace, debt.report.tags, debt.report.sound)
            else:
                LOG.warning("MLflow will not have the report of run %s: reports/ are those of another audit now", name)
        workspace.mlflow_debt(name).unlink(missing_ok=True)


def _settle_training(workspace: Workspace, run: MlflowRun, debt: Debt) -> None:
    if debt.status is not None:
        fingerprint = run.identity.fingerprint
        folders = (workspace.work(fingerprint), workspace.finished / fingerprint)
        kept = next((folder for folder in folders if folder.exists()), None)
        if kept is None:
            LOG.warning("MLflow will not have all metrics of run %s: its telemetry was removed", run.name)
        else:
            run.log(kept / recorder.FOLDER)
        run.ended(debt.status)
    if debt.published == mlflow_models.checkpoint_digest(workspace):
        mlflow_models.publish(run, workspace)
    elif debt.published is not None:
        LOG.warning("MLflow will not have the policy of run %s: checkpoints/ are those of another run now", run.name)


def log_report(workspace: Workspace, name: str, tags: Mapping[str, str], sound: bool) -> None:
    """Log the audit of the run of that name, after whatever MLflow lacks; owed where that fails."""
    digest = durable.sha256(workspace.reports / "findings.json")
    note(workspace, name, report=Report(tags=tags, sound=sound, sha256=digest))
    try:
        mlflow_store.refuse_unusable(workspace)
        settle(workspace)
    except TROUBLE as error:
        warn(error)
