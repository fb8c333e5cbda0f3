"""Tells MLflow of a training run while it goes on, and of its audit; training never waits for MLflow for long.

Metrics go out with each checkpoint. A failure is reported once, as a warning and a finding; what could not be told
waits in mlflow_debts until the store is back.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from simic import durable, params
from simic.pipeline import mlflow_debts, mlflow_models, mlflow_store
from simic.pipeline.mlflow_datasets import DescribedSplit
from simic.pipeline.mlflow_debts import Ended, Owed, Report
from simic.pipeline.mlflow_store import TROUBLE, MlflowRun, Point, RunIdentity, in_one_line, warn
from simic.pipeline.paths import Workspace
from simic.telemetry import recorder
from simic.telemetry.columns import Columns
from simic.telemetry.rows import FindingRow, UpdateRow
from simic.training.observers import EndStatus, Observer, RunInfo

PAUSE = 20.0  # times what a failed attempt took, until the next: at most a twentieth of the time goes into trying
MEGABYTE = 1_000_000


class MlflowObserver(Observer):
    """Of one training run; a failure of MLflow is reported, never raised."""

    def __init__(
        self,
        workspace: Workspace,
        tree: params.Params,
        tags: Mapping[str, str],
        splits: Sequence[DescribedSplit] = (),
    ):
        self._workspace, self._tree, self._tags, self._splits = workspace, tree, tags, tuple(splits)
        self._identity: RunIdentity | None = None
        self._name = ""
        self._report: Callable[[FindingRow], None] | None = None
        self._log = Path()
        self._run: MlflowRun | None = None
        self._started = False
        self._pending: list[Point] = []
        self._iteration = -1
        self._in_trouble = False
        self._not_before = 0.0  # on the monotonic clock: when MLflow is tried again

    def on_start(self, info: RunInfo) -> None:
        self._log, self._report, self._name = info.work_dir / recorder.FOLDER, info.report, info.name
        shown = self._tree.model_dump(mode="json", exclude={"runtime"})
        self._identity = RunIdentity(
            fingerprint=info.work_dir.name,
            params=dict(mlflow_store.flatten(shown)),
            tags=self._tags,
            dataset=self._tree.prepare.task,
            data_sha256=info.data_sha256,
            splits=self._splits,
        )
        psutil.cpu_percent()  # from here on it says how busy the machine was since it was last asked

        def first() -> None:
            mlflow_debts.settle(self._workspace)
            self._opened()

        self._attempt(first)

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        self._iteration = update.iteration
        self._pending.append(mlflow_store.point(update, episode))

    def on_checkpoint(self, path: Path, iteration: int) -> None:
        if time.monotonic() >= self._not_before:
            if self._pending:
                last = self._pending.pop()
                self._pending.append(last.model_copy(update={"metrics": {**last.metrics, **machine_load()}}))
            self._attempt(self._flush)

    def on_end(self, status: EndStatus) -> None:
        self._report = None  # the log of findings closes now

        def last() -> None:
            self._flush()
            self._opened().ended(status)

        if self._attempt(last):
            self._owe(None)
        elif self._identity is not None:  # the telemetry log is about to be replaced by tables
            points = tuple(mlflow_store.recorded_points(self._log))
            self._owe(Ended(identity=self._identity, points=points, status=status))

    def publish(self) -> None:
        """Checkpoints and policy, once they are in their place."""
        owed = self._owed().training
        assert self._identity is not None
        ended = owed or Ended(identity=self._identity, points=(), status="finished")
        self._owe(ended.model_copy(update={"published": mlflow_models.checkpoint_digest(self._workspace)}))
        self._attempt(lambda: mlflow_debts.settle_run(self._workspace, self._name))

    def _owed(self) -> Owed:
        return mlflow_debts.read(mlflow_debts.file_of(self._workspace, self._name))

    def _owe(self, training: Ended | None) -> None:
        mlflow_debts.write(self._workspace, self._name, self._owed().model_copy(update={"training": training}))

    def _opened(self) -> MlflowRun:
        """The run, made or found at the first call that succeeds; it then gets what it missed."""
        if self._run is None:
            assert self._identity is not None
            run = MlflowRun(self._workspace, self._identity)
            if not self._started:
                run.started()
                self._started = True
            run.log(mlflow_store.recorded_points(self._log))
            self._run = run
        return self._run

    def _flush(self) -> None:
        self._opened().log(self._pending)
        self._pending = []

    def _attempt(self, call: Callable[[], object]) -> bool:
        """Whether it succeeded."""
        began = time.monotonic()
        try:
            mlflow_store.refuse_unusable(self._workspace)
            call()
        except TROUBLE as error:
            self._run = None  # what arrived is looked up again, since an answer may have been lost
            self._not_before = time.monotonic() + PAUSE * (time.monotonic() - began)
            if not self._in_trouble:
                self._note(error)
            self._in_trouble = True
            return False
        self._in_trouble = False
        return True

    def _note(self, error: Exception) -> None:
        warn(error)
        if self._report is not None:
            message = f"logging to MLflow failed: {in_one_line(error)}"
            finding = FindingRow(iteration=self._iteration, check="tracking_gone", severity="low", message=message)
            self._report(finding)


def machine_load() -> dict[str, float]:
    """How busy the machine was since the last checkpoint and how full its memory is, by MLflow's own names.

    Told with the points of a checkpoint and never owed: it is of no use later, and equal runs differ in it.
    """
    memory, own = psutil.virtual_memory(), psutil.Process().memory_info().rss
    return {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": memory.used / MEGABYTE,
        "system/system_memory_usage_percentage": memory.percent,
        "system/process_memory_megabytes": own / MEGABYTE,
    }


def log_report(workspace: Workspace, name: str, tags: Mapping[str, str], sound: bool) -> None:
    """The audit of the run of that name, after whatever MLflow is still to be told; owed where it cannot be told."""
    sha256 = durable.sha256(workspace.reports / "findings.json")
    owed = mlflow_debts.read(mlflow_debts.file_of(workspace, name))
    report = Report(tags=tags, sound=sound, sha256=sha256)
    mlflow_debts.write(workspace, name, owed.model_copy(update={"report": report}))
    try:
        mlflow_store.refuse_unusable(workspace)
        mlflow_debts.settle(workspace)
    except TROUBLE as error:
        warn(error)
