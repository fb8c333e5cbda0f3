"""The only file that imports mlflow: one run per fingerprint, every step exactly once, and training needs none of it.

The run directory is the record; MLflow gets a copy. What is told when is in mlflow_observer, what waits while MLflow is
out of reach in mlflow_debts.
"""

import json
import logging
import math
import os
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

# Read when mlflow is imported. Nothing leaves the machine, and a server that is gone costs seconds, not minutes.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModel, LoggedModelStatus, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from simic import durable
from simic.errors import printable
from simic.pipeline.paths import Workspace
from simic.telemetry import naming, recorder
from simic.telemetry.columns import Columns
from simic.telemetry.rows import SEVERITIES, UpdateRow
from simic.training.observers import EndStatus

EXPERIMENT = "simic"
REGISTERED_MODEL = "simic-policy"
CHAMPION, CHALLENGER = "champion", "challenger"  # aliases of its versions
POLICY = "policy"  # the model that is registered
DATA_TAG = "simic.data_sha256"  # of a version: the data that it was trained on
PUBLISHED_TAG = "simic.checkpoint"  # of a run: what its published checkpoints are
MARKER = "iteration"  # logged with every point: its largest step is what MLflow already has
FINDING_TABLE = "findings_table.json"
END_STATUS: dict[EndStatus, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
FINDING_COLUMNS = ("check", "severity", "title", "measured", "threshold", "fix")
MOST_DESCRIBED = 5000  # characters of a description that MLflow's tables have room for
LOCK_SECONDS = 1.0  # that another process may hold a local store before it counts as out of reach
DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306}  # where they listen unless the URI says otherwise
BATCH_METRICS = 1000  # MLflow's limit of one log_batch, which is one transaction
TROUBLE = (MlflowException, SQLAlchemyError, OSError, durable.Held)

_log = logging.getLogger(__name__)
for _noisy in ("mlflow", "alembic"):  # creating the store is a matter of course, not news between lines of progress
    logging.getLogger(_noisy).setLevel(logging.WARNING)
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # errors are raised as well, and said in one line


class Point(BaseModel, frozen=True):
    """The metrics of one iteration."""

    iteration: int
    metrics: Mapping[str, float]
    time_ms: int


class RunIdentity(BaseModel, frozen=True):
    """What a run is and what it is made of."""

    fingerprint: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    dataset: str
    data_sha256: str


def keeper(workspace: Workspace) -> Workspace:
    """Whose store is used: the workspace's own; of a copy in which DVC runs an experiment (``--temp``, ``--queue``)
    and which it removes afterwards, that of the project that was copied.
    """
    root, project = workspace.root.resolve(), os.environ.get("DVC_ROOT", "")
    if "DVC_EXP_NAME" in os.environ and root.is_relative_to(Path(project).resolve() / ".dvc" / "tmp"):
        return Workspace(Path(project).resolve())
    return Workspace(root)


def store_uri(workspace: Workspace) -> str:
    """The server named by MLFLOW_TRACKING_URI, else the stock store of this project by absolute path."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{keeper(workspace).root / 'mlflow.db'}"


def refuse_unusable(workspace: Workspace) -> None:
    """OSError where a store that is a file cannot be written, or a database server does not answer, within
    ``LOCK_SECONDS``; MLflow would wait 20 seconds at every query of the one, and an hour for the other.
    """
    uri = store_uri(workspace)
    address = urlsplit(uri)
    port = DATABASE_PORTS.get(address.scheme.partition("+")[0])
    if port is not None:
        socket.create_connection((address.hostname or "localhost", address.port or port), LOCK_SECONDS).close()
    file = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or not file.exists():
        return
    try:
        with closing(sqlite3.connect(file, timeout=LOCK_SECONDS, isolation_level=None)) as store:
            store.execute("BEGIN IMMEDIATE")
            store.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise OSError(f"{file}: {error}") from None


def connect(workspace: Workspace) -> tuple[MlflowClient, str]:
    """A client and the id of the experiment, both made on first use.

    The first initialisation from several processes at once destroys the database (mlflow #19943), hence the lock.
    """
    project = keeper(workspace)
    with durable.locked(project.state / "mlflow.lock", "opens MLflow's store", 60):
        client = MlflowClient(tracking_uri=store_uri(workspace), registry_uri=store_uri(workspace))
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None:
            return client, experiment.experiment_id
        local = "MLFLOW_TRACKING_URI" not in os.environ
        location = (project.root / "mlruns" / EXPERIMENT).as_uri() if local else None
        tags = {"mlflow.experimentKind": "custom_model_development"}
        return client, client.create_experiment(EXPERIMENT, artifact_location=location, tags=tags)


class MlflowRun:
    """The MLflow run of one fingerprint, found again or made; ``last_iteration`` is the last one it holds already."""

    def __init__(self, workspace: Workspace, identity: RunIdentity):
        self.client, self.experiment_id = connect(workspace)
        self._identity = identity
        found = find_run(self.client, self.experiment_id, "simic.fingerprint", identity.fingerprint)
        self.run_id = found or self._create(identity)
        self.last_iteration = self._last_logged()

    def _create(self, identity: RunIdentity) -> str:
        tags = {"simic.fingerprint": identity.fingerprint, **identity.tags}
        name = naming.run_name(identity.fingerprint)
        run_id = self.client.create_run(self.experiment_id, run_name=name, tags=tags).info.run_id
        params = [Param(key, value) for key, value in identity.params.items()]
        self.client.log_batch(run_id, params=params)
        data = Dataset(identity.dataset, identity.data_sha256[:36], "local", "data/prepared")
        used_for = [InputTag("mlflow.data.context", "training")]
        self.client.log_inputs(run_id, [DatasetInput(data, used_for)])
        return run_id

    def started(self) -> None:
        """Training starts or resumes here."""
        starts = int(self.client.get_run(self.run_id).data.tags.get("simic.starts", "0")) + 1
        self.client.update_run(self.run_id, status="RUNNING")
        self.tag({"simic.starts": str(starts), "simic.resumes": str(starts - 1)})

    def ended(self, status: EndStatus) -> None:
        """Training ended: finished, interrupted (and resumable) or failed."""
        self.client.set_terminated(self.run_id, END_STATUS[status])
        self.tag({"simic.status": status})

    def _last_logged(self) -> int:
        steps = [metric.step for metric in self.client.get_metric_history(self.run_id, MARKER)]
        return max(steps, default=-1)

    def log(self, points: Iterable[Point]) -> None:
        """Appends the points that MLflow does not have yet; a point is never split over two transactions."""
        batch: list[Metric] = []
        for point in points:
            if point.iteration <= self.last_iteration:
                continue
            metrics = _metrics(point)
            if len(batch) + len(metrics) > BATCH_METRICS:
                self._send(batch)
                batch = []
            batch += metrics
        self._send(batch)

    def _send(self, batch: list[Metric]) -> None:
        if batch:
            self.client.log_batch(self.run_id, metrics=batch)
            self.last_iteration = max(metric.step for metric in batch)

    def tag(self, tags: Mapping[str, str]) -> None:
        self.client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def add_model(self, name: str, folder: Path, params: dict[str, str]) -> LoggedModel:
        """A folder of files as a LoggedModel of the run, unless the run has a whole one of this name already."""
        for model in _models(self.client, self.experiment_id, self.run_id, name):
            return model
        model = self.client.create_logged_model(self.experiment_id, name, self.run_id, params=params)
        self.client.log_model_artifacts(model.model_id, str(folder))
        return self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)

    def score(self, model: LoggedModel, key: str, value: float | None, step: int) -> None:
        """One measurement of a model, once; None where it was not made."""
        if value is not None and not self.client.get_metric_history(self.run_id, key):
            stamp = time.time_ns() // 1_000_000
            metric = Metric(key, value, stamp, step, model_id=model.model_id, run_id=self.run_id)
            self.client.log_batch(self.run_id, metrics=[metric])

    def register(self, model: LoggedModel) -> None:
        """The next version of the registered policy; once per run. It has no alias before its audit."""
        if not self.client.search_registered_models(f"name = '{REGISTERED_MODEL}'"):
            self.client.create_registered_model(REGISTERED_MODEL)
        if self.client.search_model_versions(f"name = '{REGISTERED_MODEL}' AND run_id = '{self.run_id}'"):
            return
        # not models:/id, which MLflow would look up in the default store instead of this client's
        source, tags = model.artifact_location, {DATA_TAG: self._identity.data_sha256}
        self.client.create_model_version(REGISTERED_MODEL, source, self.run_id, tags=tags, model_id=model.model_id)


def audited(client: MlflowClient, run_id: str, sound: bool) -> None:
    """Of a run that was audited: its policy is the challenger where the audit is ``sound``, and is not where it is not.
    A champion is no challenger.
    """
    holders = aliases(client)
    for version in client.search_model_versions(f"name = '{REGISTERED_MODEL}' AND run_id = '{run_id}'"):
        number = str(version.version)
        if sound and holders.get(CHAMPION) != number:
            client.set_registered_model_alias(REGISTERED_MODEL, CHALLENGER, number)
        elif not sound and holders.get(CHALLENGER) == number:
            client.delete_registered_model_alias(REGISTERED_MODEL, CHALLENGER)


def aliases(client: MlflowClient) -> dict[str, str]:
    """The version of the registered policy that has each alias."""
    models = client.search_registered_models(f"name = '{REGISTERED_MODEL}'")
    return {alias: str(number) for model in models for alias, number in model.aliases.items()}


def _models(client: MlflowClient, experiment_id: str, run_id: str, name: str) -> list[LoggedModel]:
    """Whole ones of a run."""
    mine = f"source_run_id = '{run_id}' AND name = '{name}'"
    found = client.search_logged_models([experiment_id], filter_string=mine)
    return [model for model in found if model.status == LoggedModelStatus.READY]


def find_run(client: MlflowClient, experiment_id: str, tag: str, value: str) -> str | None:
    """The id of the youngest run with this tag, deleted ones aside."""
    runs = client.search_runs([experiment_id], f"tags.`{tag}` = '{value}'", max_results=1)
    return runs[0].info.run_id if runs else None


def _metrics(point: Point) -> list[Metric]:
    values = {**point.metrics, MARKER: float(point.iteration)}
    return [Metric(key, value, point.time_ms, point.iteration) for key, value in values.items()]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """``("train.ppo.gamma", "0.995")`` of a nested mapping."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value)


def point(update: UpdateRow, episode: Columns) -> Point:
    """The metrics of one iteration: those of the update by name, and the means over hosts of its episodes.

    A missing measurement (NaN) is left out, never logged as 0.
    """
    metrics = {f"update/{name}": value for name, value in update.metrics.items()}
    for name, values in episode.items():
        measured = values[np.isfinite(values)].tolist()
        if name != "env_id":
            metrics[f"episode/{name}"] = sum(measured) / len(measured) if measured else math.nan
    metrics["validation/score"] = update.validation_accuracy
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return Point(iteration=update.iteration, metrics=finite, time_ms=time.time_ns() // 1_000_000)


def recorded_points(log: Path) -> Iterator[Point]:
    """The points of a telemetry log: what MLflow is sent again after it missed some."""
    for file in recorder.read(log):
        if (update := file.update) is not None:
            yield point(update, file.columns("train"))


def publish(run: MlflowRun, workspace: Workspace) -> None:
    """The published checkpoints and the policy as LoggedModels, the policy registered; what is there already stays."""
    manifests = sorted(workspace.checkpoints.glob("*/manifest.json"))
    for path in manifests:
        manifest = json.loads(path.read_bytes())
        model = run.add_model(f"checkpoint-{path.parent.name}", path.parent, {"iteration": str(manifest["iteration"])})
        if path.parent.name == "best":
            run.score(model, "validation/best_score", manifest["scalars"]["best_score"], manifest["iteration"])
    run.register(run.add_model(POLICY, workspace.models, {}))
    run.tag({PUBLISHED_TAG: checkpoint_digest(workspace)})


def checkpoint_digest(workspace: Workspace) -> str:
    """What the published checkpoints are, and so how their run is found again; empty when there are none."""
    manifest = workspace.checkpoints / "latest" / "manifest.json"
    return durable.sha256(manifest) if manifest.exists() else ""


def send_report(workspace: Workspace, tags: Mapping[str, str], sound: bool) -> None:
    """Report, findings and verdict to the run of the published checkpoints. Its policy is the challenger from now on
    where the audit is ``sound``: not refuted.
    """
    client, experiment_id = connect(workspace)
    run_id = find_run(client, experiment_id, PUBLISHED_TAG, checkpoint_digest(workspace))
    if run_id is None:
        _log.warning("MLflow has no run of these checkpoints, so the report is not logged there")
        return
    for file in sorted(set(workspace.reports.glob("*.*")) - {workspace.promotion}):
        client.log_artifact(run_id, str(file))
    log_evaluation(client, run_id, workspace)
    findings = _findings(workspace)
    table = {
        "columns": FINDING_COLUMNS,
        "data": [[finding[key] for key in FINDING_COLUMNS] for finding in findings],
    }
    client.log_dict(run_id, table, FINDING_TABLE)
    counted = {f"simic.findings.{s}": str(sum(f["severity"] == s for f in findings)) for s in SEVERITIES}
    worst = max((f["severity"] for f in findings), key=SEVERITIES.index, default="none")
    shown = {"mlflow.loggedArtifacts": json.dumps([{"path": FINDING_TABLE, "type": "table"}])}
    described = [RunTag(key, value) for key, value in {**tags, **counted, **shown, "simic.verdict": worst}.items()]
    client.log_batch(run_id, tags=described)
    audited(client, run_id, sound)
    _log_card(client, experiment_id, run_id, workspace)


def _log_card(client: MlflowClient, experiment_id: str, run_id: str, workspace: Workspace) -> None:
    """Beside the files of the policy, and as the description of its version."""
    if not workspace.model_card.exists():
        return
    text = workspace.model_card.read_text(encoding="utf-8")
    for version in client.search_model_versions(f"name = '{REGISTERED_MODEL}' AND run_id = '{run_id}'"):
        described = text.partition("\n---\n")[2].strip() or text  # without the front matter
        client.update_model_version(REGISTERED_MODEL, str(version.version), described[:MOST_DESCRIBED])
    for model in _models(client, experiment_id, run_id, POLICY):
        with TemporaryDirectory() as folder:
            (Path(folder) / "README.md").write_text(text, encoding="utf-8")
            client.log_model_artifacts(model.model_id, folder)


def log_evaluation(client: MlflowClient, run_id: str, workspace: Workspace) -> None:
    """Mean test accuracy of every policy and the importance of observations, in points, and the numbers of
    metrics.json; a value that is there already is not logged again.
    """
    if not workspace.evaluation.exists():
        return
    evaluation = json.loads(workspace.evaluation.read_bytes())
    known, step = client.get_run(run_id).data.metrics, evaluation["checkpoint_iteration"] or 0
    measured = {f"test/{name}": row["test_accuracy_pct"]["estimate"] for name, row in evaluation["policies"].items()}
    measured |= {f"importance/{name}": row["lost"]["estimate"] for name, row in evaluation["importance"].items()}
    if workspace.metrics.exists():
        measured |= {f"suite/{name}": value for name, value in json.loads(workspace.metrics.read_bytes()).items()}
    stamp = time.time_ns() // 1_000_000
    new = [Metric(key, value, stamp, step) for key, value in measured.items() if known.get(key) != value]
    client.log_batch(run_id, metrics=new)


def _findings(workspace: Workspace) -> list[dict[str, str]]:
    results = json.loads((workspace.reports / "findings.json").read_bytes())["results"]
    return [result for result in results if result["status"] == "finding"]


def warn(error: Exception) -> None:
    """Reports what MLflow raised; the run goes on."""
    _log.warning("logging to MLflow failed, the run continues without it: %s", printable(in_one_line(error)))


def in_one_line(error: Exception) -> str:
    """What a library says in several."""
    return " ".join(str(error).split())
