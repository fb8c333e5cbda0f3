"""Log runs to MLflow: a training while it goes on, and at the end of the chain the policy, the results and the report.

The workspace is the record; MLflow has a copy that runs are compared by. A store that is away costs one warning, and
``log_run`` logs what it lacks the next time, from the published files.
"""

import simic.pipeline.mlflow_settings  # noqa: F401 - before mlflow  # isort: skip
import csv
import functools
import getpass
import importlib.metadata
import json
import logging
import math
import os
import re
import shutil
import sqlite3
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from mlflow import MlflowClient
from mlflow.entities import (
    LifecycleStage,
    LoggedModel,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    RunTag,
)
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from simic import durable, seals
from simic.errors import SimicError, exit_with_message, printable
from simic.params import Params
from simic.pipeline import simic_policy
from simic.pipeline.paths import UI_VARIABLE, Workspace, name_user, sqlite_uri
from simic.telemetry import starts, timing
from simic.telemetry.columns import Columns, mean_measured
from simic.telemetry.curves import CURVES_FILE, OF_EPISODES
from simic.telemetry.publish import UPDATES_FILE
from simic.telemetry.rows import UpdateRow
from simic.training.observers import EndStatus, Observer, RunInfo

EXPERIMENT = "simic"
NOTE = """One run for each training.

| metrics | |
|---|---|
| `compare/…` | the results that runs are compared by |
| `episode/…` | means over the hosts of an iteration |
| `update/…` | the PPO update of an iteration |
| `validation/score` | of the validation episodes |

The run's `telemetry` folder has every number.
"""
NOTE_TAG = "mlflow.note.content"  # MLflow shows it as the description
# Metrics of an update, and params, that are logged for every run; more would hide what matters.
UPDATE = (
    "policy_loss", "value_loss", "entropy", "entropy_coef", "approx_kl", "clip_fraction", "ratio_max", "grad_norm",
    "learning_rate", "explained_variance", "return_mean", "advantage_std", "stopped_early", "samples",
)  # fmt: skip
PARAMS = (
    "rng_seed", "prepare.task", "prepare.suite.name", "train.host", "train.iterations", "train.envs",
    "train.episode_steps", "train.policy", "train.ppo",
)  # fmt: skip
RUN_TAG, REPORT_TAG = "simic.run", "simic.report"
DATA_TAG = "simic.data_sha256"
STARTED = -1  # among the times of iterations: that of the start
MARKER = "iteration"  # a metric of every iteration that is logged
CHAMPION, CHALLENGER = "champion", "challenger"  # aliases of a registered version
MODEL_NOTE = """Loaded by MLflow and torch, without simic:

    mlflow.pyfunc.load_model("models:/{name}@champion")
"""
LONGEST_NOTE = 5000  # characters that MLflow's tables have room for
LONGEST_COMMAND = 250
LOADED_WITH = ("mlflow", "numpy", "torch")
NETWORKS_WITH = (*LOADED_WITH, "pandas")
POLICY_TAG = "simic.policy"  # of a model: the hash of the policy's or network's files
EXAMPLE_ROWS = 2  # with one row a reader could not tell which axis is the batch
END_STATUS: Mapping[EndStatus, str] = {
    "finished": "FINISHED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}
LOCK_SECONDS = 5.0  # that a local store may be locked
OPEN_SECONDS = 60.0  # that another process may take to make the store
TROUBLE = (MlflowException, SQLAlchemyError, OSError, durable.Held)

LOG = logging.getLogger(__name__)
for _noisy in (
    "mlflow",
    "alembic",
    "urllib3",
):  # no news between lines of progress: errors are raised as well
    logging.getLogger(_noisy).setLevel(logging.CRITICAL)


class Unusable(OSError):
    """The store is there, and its user has to put something right; the message says what."""


class Store(NamedTuple):
    """Hold a client of MLflow and the experiment of this project."""

    client: MlflowClient
    experiment_id: str

    def find_run(self, name: str) -> str | None:
        """Find the id of the run with this name; deleted runs do not count."""
        # By a tag of ours: a user may rename the run.
        runs = self.client.search_runs(
            [self.experiment_id], f"tags.`{RUN_TAG}` = '{name}'", max_results=1
        )
        return runs[0].info.run_id if runs else None

    def open_run(
        self, name: str, params: Params, tags: Mapping[str, str], started: int | None = None
    ) -> str:
        """Find the run with this name, or make it with params and tags.

        Args:
            name: Of the run in the terminal, the report and MLflow.
            params: Of the run; a choice of them is logged.
            tags: Of a run that is made, beside those of its origin.
            started: When a run that is made began, in milliseconds; None: now.

        Returns:
            Its id in MLflow.
        """
        # A resumed training goes on in its run.
        run_id = self.find_run(name)
        if run_id is None:
            tags = {RUN_TAG: name, **_origin(tags.get("simic.code", "")), **tags}
            run_id = self.client.create_run(self.experiment_id, started, tags, name).info.run_id
            self.client.log_batch(
                run_id, params=[Param(key, value) for key, value in logged_params(params).items()]
            )
        return run_id

    def log_iterations(
        self,
        run_id: str,
        iterations: Mapping[int, Mapping[str, float]],
        times: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Log the metrics of the iterations that the run lacks, each with its marker in one transaction.

        Args:
            run_id: Of the run.
            iterations: Metrics by iteration.
            times: When iterations ended, in milliseconds; those that are not in there end now.
        """
        # The marker comes with the metrics of its iteration, or not at all: what has one is complete.
        points = self.client.get_metric_history(run_id, MARKER)
        logged = {point.step for point in points}
        now = _milliseconds()
        for iteration in sorted(iterations.keys() - logged):
            numbers = {**iterations[iteration], MARKER: float(iteration)}
            metrics = [
                Metric(key, value, times.get(iteration, now), iteration)
                for key, value in numbers.items()
                if math.isfinite(value)
            ]
            self.client.log_batch(run_id, metrics=metrics)


# --- the store ---


def project_of(workspace: Workspace) -> Workspace:
    """Find whose store is used: the workspace's. Of a copy in which DVC runs an experiment (``--temp``, ``--queue``),
    and which it removes afterwards, that of the copied project.
    """
    # DVC tells a process of an experiment where the project is.
    root = workspace.root.resolve()
    project = Path(os.environ.get("DVC_ROOT", "")).resolve()
    is_copy = "DVC_EXP_NAME" in os.environ and root.is_relative_to(project / ".dvc" / "tmp")
    return Workspace(project if is_copy else root)


def store_uri(workspace: Workspace) -> str:
    """Name the server of MLFLOW_TRACKING_URI, else MLflow's usual store in this project, by absolute path."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(
        project_of(workspace).root / "mlflow.db"
    )


def connect(workspace: Workspace) -> Store:
    """Open the store and the experiment, and make them at first use.

    Raises:
        Unusable: the store belongs to the folder from which the project was copied, or the experiment is deleted.
        OSError: the store cannot be written.
        MlflowException, SQLAlchemyError: MLflow's own complaints.
    """
    # The store, which another process may be making right now.
    uri = store_uri(workspace)
    project = project_of(workspace)
    artifacts = None  # a server chooses the place itself
    # Two first initialisations at once would destroy the database (mlflow #19943), hence the lock.
    with durable.locked(project.state / "mlflow.lock", "opens MLflow's store", OPEN_SECONDS):
        if "MLFLOW_TRACKING_URI" not in os.environ:
            artifacts = (project.root / "mlruns" / EXPERIMENT).as_uri()
            if not (project.root / "mlflow.db").exists():
                _make_database(project, artifacts)
        _refuse_locked(uri)
        # From here on MLflow itself opens the store, and raises its own errors.
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            return Store(client, _create_experiment(client, artifacts))
    if experiment.lifecycle_stage != LifecycleStage.ACTIVE:
        raise Unusable(
            f"the experiment {EXPERIMENT} is deleted in {printable(uri)}; to log to it again: "
            f"mlflow experiments restore --experiment-id {experiment.experiment_id}; "
            "to begin a new one: mlflow gc, which removes its runs"
        )
    if artifacts is not None and experiment.artifact_location != artifacts:
        # MLflow keeps absolute paths: a copied project would write into the folder of the first one.
        raise Unusable(
            f"{project.root / 'mlflow.db'} keeps its files in {experiment.artifact_location}: the project "
            "was copied or moved. To go on here, with the earlier runs still to be seen, run in its folder: "
            f"mlflow experiments rename --experiment-id {experiment.experiment_id} "
            f"--new-name {EXPERIMENT}-{experiment.experiment_id}"
        )
    return Store(client, experiment.experiment_id)


def _make_database(project: Workspace, artifacts: str) -> None:
    """Make the database elsewhere and rename it: a process that is killed meanwhile leaves none that is half made."""
    # Beside its place, since a rename does not reach another disk.
    with TemporaryDirectory(prefix=".mlflow-", dir=project.root) as folder:
        database = Path(folder) / "mlflow.db"
        database.touch(0o660)  # nobody but the owner, and the group where the umask lets it
        _create_experiment(MlflowClient(sqlite_uri(database)), artifacts)
        database.rename(project.root / "mlflow.db")


def _create_experiment(client: MlflowClient, artifacts: str | None) -> str:
    # By this tag MLflow's pages show runs as trainings and not as traces of a language model.
    tags = {"mlflow.experimentKind": "custom_model_development", NOTE_TAG: NOTE}
    return client.create_experiment(EXPERIMENT, artifact_location=artifacts, tags=tags)


def _refuse_locked(uri: str) -> None:
    """Raise OSError where a database that is a file cannot be written for ``LOCK_SECONDS``; MLflow itself would try
    for minutes.
    """
    if not uri.startswith("sqlite:///"):
        return
    file = uri.removeprefix("sqlite:///")
    try:
        with closing(
            sqlite3.connect(file, timeout=LOCK_SECONDS, isolation_level=None, uri=True)
        ) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
    except sqlite3.Error as error:
        if file.startswith("file:"):
            file = unquote(file.removeprefix("file:").partition("?")[0])
        raise OSError(f"{file}: {error}") from None


@contextmanager
def answering() -> Iterator[None]:
    """Raise SimicError in one line where MLflow does not answer."""
    try:
        yield
    except Unusable as error:
        raise SimicError(str(error)) from None
    except TROUBLE as error:
        raise SimicError(
            f"MLflow does not answer, try again when it does: {describe(error)}"
        ) from None


def warn(error: Exception) -> None:
    """Warn of what MLflow raised, in one line and without credentials; the run goes on."""
    _warn_once(describe(error))


@functools.cache
def _warn_once(reason: str) -> None:
    # A store that is away fails at the start, at the end and for the link to the run, and is one trouble.
    LOG.warning("logging to MLflow failed, the run continues without it: %s", reason)


def describe(error: Exception) -> str:
    """Join the lines of a library's message."""
    return printable(" ".join(str(error).split()))


# --- training ---


class RunLogger(Observer):
    """Log a training while it goes on. After a failure nothing more is tried before the end of the chain."""

    def __init__(self, workspace: Workspace, params: Params, tags: Mapping[str, str]):
        self._workspace = workspace
        self._params = params
        self._tags = tags
        self._store: Store | None = None
        self._run_id = ""

    def on_start(self, info: RunInfo) -> None:
        def open_run() -> None:
            store = connect(self._workspace)
            self._run_id = store.open_run(info.name, self._params, self._tags)
            store.client.update_run(self._run_id, status="RUNNING")
            self._store = store

        self._attempt(open_run)

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        if (store := self._store) is not None:
            metrics = {update.iteration: metrics_of(update, episode)}
            self._attempt(lambda: store.log_iterations(self._run_id, metrics))

    def on_end(self, status: EndStatus) -> None:
        if (store := self._store) is not None:
            self._attempt(lambda: store.client.set_terminated(self._run_id, END_STATUS[status]))

    def _attempt(self, call: Callable[[], None]) -> None:
        try:
            call()
        except TROUBLE as error:
            self._store = None
            warn(error)


def logged_params(params: Params) -> dict[str, str]:
    """Choose the params by which runs are told apart, and all that differ from the defaults."""
    # Hundreds of params would hide the few that somebody changed.
    values = dict(_flatten(params.model_dump(mode="json", exclude={"runtime", "tune"})))
    defaults = dict(_flatten(Params().model_dump(mode="json")))
    return {
        key: value
        for key, value in values.items()
        if key.startswith(PARAMS) or value != defaults.get(key)
    }


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield leaves of a nested mapping: ``("train.ppo.gamma", "0.995")``."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value)


def metrics_of(update: UpdateRow, episode: Columns) -> dict[str, float]:
    """Choose the metrics of an iteration; NaN is a measurement that was not made."""
    # Metrics of another task, as Gymnasium's, may be missing.
    metrics = {f"update/{name}": update.metrics[name] for name in UPDATE if name in update.metrics}
    for name, column in OF_EPISODES.items():
        if column in episode:
            metrics[f"episode/{name}"] = mean_measured(episode[column])
    return {**metrics, "validation/score": update.validation_accuracy}


def published_metrics(telemetry: Path) -> dict[int, dict[str, float]]:
    """Read the metrics of all iterations from the published tables: those of ``metrics_of``, by iteration."""
    # Means over hosts stand in the curves already; episodes would have to be averaged again.
    updates = pq.read_table(telemetry / UPDATES_FILE).to_pylist()
    with (telemetry / CURVES_FILE).open(encoding="utf-8", newline="") as file:
        curves = list(csv.DictReader(file))
    iterations = {}
    for update, curve in zip(updates, curves, strict=True):
        metrics = {f"update/{name}": update[name] for name in UPDATE if name in update}
        metrics |= {f"episode/{name}": float(curve[name]) for name in OF_EPISODES if curve[name]}
        iterations[update["iteration"]] = {
            **metrics,
            "validation/score": update["validation_accuracy"],
        }
    return iterations


def published_times(telemetry: Path) -> dict[int, int]:
    """Work out when each iteration ended, and training began (``STARTED``), in milliseconds: MLflow may be told later.

    Empty where the times were lost.
    """
    ended = dict[int, int]()
    with suppress(SimicError):
        begun = starts.read(telemetry / starts.RUN_FILE)
        # An iteration that was begun several times counts from its last start.
        resumed = {row.start_iteration: row.unix_seconds for row in begun}
        clock = begun[0].unix_seconds
        ended[STARTED] = int(1000 * clock)
        for row in timing.read(telemetry / timing.TIMING_FILE):
            clock = resumed.get(row.iteration, clock)
            clock += 0.0 if math.isnan(row.seconds) else row.seconds
            ended[row.iteration] = int(1000 * clock)
    return ended


# --- the end of the chain ---


def log_run(
    workspace: Workspace,
    params: Params,
    name: str,
    tags: Mapping[str, str],
    description: str,
    sound: bool,
) -> None:
    """Log all that MLflow lacks of the published run; nothing where it has this report.

    Args:
        workspace: Has the published folders of the run: telemetry/, models/ and reports/.
        params: Of the run.
        name: Of the run.
        tags: Of the run, beside MLflow's own.
        description: A few lines that MLflow shows above the run.
        sound: Whether the audit found nothing that refutes the record; the policy is then the challenger.
    """
    try:
        # Nothing is left to do where the run has this very report.
        store = connect(workspace)
        times = published_times(workspace.telemetry)
        run_id = store.open_run(name, params, tags, times.get(STARTED))
        findings = workspace.reports / "findings.json"
        report, audited = durable.sha256(findings), int(1000 * findings.stat().st_mtime)
        if store.client.get_run(run_id).data.tags.get(REPORT_TAG) == report:
            return

        # What training could not log, then the policy and its results.
        store.log_iterations(run_id, published_metrics(workspace.telemetry), times)
        model = _log_policy(store, run_id, workspace, logged_params(params))
        _log_results(store.client, run_id, model.model_id, workspace, audited)

        # The policy is registered with its card; a sound audit makes it the challenger of the champion.
        registered = registered_name(params.prepare.dataset)
        version = _register(store.client, run_id, model, registered, {DATA_TAG: tags[DATA_TAG]})
        card = workspace.model_card.read_text(encoding="utf-8")
        store.client.update_model_version(version.name, str(version.version), card[:LONGEST_NOTE])
        if not sound:
            take_alias(store.client, version, CHALLENGER)
        elif CHAMPION not in version.aliases:
            give_alias(store.client, version, CHALLENGER)

        # The report's tag comes last: a run without it is not whole.
        tags = {**tags, NOTE_TAG: description, REPORT_TAG: report}
        store.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
        store.client.set_terminated(run_id, END_STATUS["finished"], audited)
    except TROUBLE as error:
        warn(error)


def _log_results(
    client: MlflowClient, run_id: str, model_id: str, workspace: Workspace, audited: int
) -> None:
    """Log the headline of the evaluation, linked to the model, at the time of its audit; the report and figures."""
    # Numbers that are there already, of an earlier audit of the run, are not logged again.
    logged = client.get_run(run_id).data.metrics
    results = json.loads(workspace.metrics.read_bytes())
    for name, value in results.items():
        key = f"compare/{name}"
        if logged.get(key) != value:
            # With step 0 alone MLflow draws bars, run beside run.
            client.log_batch(
                run_id, metrics=[Metric(key, value, audited, 0, model_id, run_id=run_id)]
            )
    # The report as files; figures have a folder of their own.
    for file in sorted(workspace.reports.glob("*.*")):
        client.log_artifact(run_id, str(file))
    if workspace.figures.exists():
        client.log_artifacts(run_id, str(workspace.figures), workspace.figures.name)


def address(workspace: Workspace, name: str) -> str:
    """Give the address of a run in MLflow's UI; of its list of experiments where MLflow lacks the run."""
    # A link is no reason to fail: without the store it leads to the list.
    ui = os.environ.get(UI_VARIABLE, "http://127.0.0.1:5000")
    try:
        store = connect(workspace)
        run_id = store.find_run(name)
        if run_id is not None:
            return f"{ui}/#/experiments/{store.experiment_id}/runs/{run_id}"
    except TROUBLE as error:
        warn(error)
    return f"{ui}/#/experiments?workflowType=machine_learning"


# --- the policy as a model ---


def _log_policy(
    store: Store, run_id: str, workspace: Workspace, params: dict[str, str]
) -> LoggedModel:
    """Find the run's complete model of this policy, or log it."""
    digest = seals.content_hash(workspace.models)
    models = store.client.search_logged_models(
        [store.experiment_id], filter_string=f"source_run_id = '{run_id}'"
    )
    # The hash tells whether it is this policy, however often the run was logged.
    for model in models:
        if model.status == LoggedModelStatus.READY and model.tags.get(POLICY_TAG) == digest:
            return model
    # A model that a killed process left half made is not READY, and another one is made beside it.
    tags = {POLICY_TAG: digest}
    model = store.client.create_logged_model(
        store.experiment_id, "policy", run_id, tags=tags, params=params
    )
    with TemporaryDirectory() as folder:
        package(workspace, Path(folder) / "policy", model)
        store.client.log_model_artifacts(model.model_id, str(Path(folder) / "policy"))
    store.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 0)])
    return store.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def package(workspace: Workspace, folder: Path, model: LoggedModel) -> None:
    """Make an MLflow model of the published policy in a new folder: its files, a loader, signature, example and card.
    Nothing in it is pickled.

    Args:
        workspace: With the published policy and its card.
        folder: New; the model is written into it.
        model: That MLflow knows already, for its ids.
    """
    # The example fixes types and shapes; an error here is one that a user would have met.
    example = _example(
        json.loads((workspace.models / "program" / "policy.json").read_bytes())["inputs"]
    )
    outputs = simic_policy.ServedPolicy(workspace.models / "program").predict(example)
    loader = Path(simic_policy.__file__)
    _save(folder, model, workspace.models, loader, (example, outputs), LOADED_WITH)
    (folder / "README.md").write_bytes(workspace.model_card.read_bytes())


def _save(
    folder: Path,
    model: LoggedModel,
    data: Path,
    loader: Path,
    example: tuple[Any, Any],
    libraries: Sequence[str],
) -> None:
    """Make an MLflow model of a folder: its data, the module that loads them, and inputs with their outputs."""
    # Without the local part: a version such as 2.11+cpu is not on PyPI.
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in libraries}
    # Imported here alone: most commands never make a model. It takes seconds, and warns of what is inside MLflow.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.models import Model, infer_signature
        from mlflow.pyfunc import save_model

        save_model(
            folder,
            loader_module=loader.stem,
            data_path=str(data),
            code_paths=[str(loader)],
            mlflow_model=Model(model_id=model.model_id, run_id=model.source_run_id),
            signature=infer_signature(*example),
            input_example=example[0],
            pip_requirements=[f"{name}=={version}" for name, version in versions.items()],
        )


def _example(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Make inputs for hosts at the start of an episode, every action allowed."""
    return {
        name: np.full((EXAMPLE_ROWS, *spec["shape"][1:]), name.startswith("mask_"), spec["dtype"])
        for name, spec in inputs.items()
    }


# --- grown networks as models ---


def register_network(
    store: Store, folder: Path, name: str, more: Mapping[str, str] = MappingProxyType({})
) -> ModelVersion:
    """Register a classifier of a table that ``simic grow`` saved, once; MLflow loads it by its predict.py.

    Args:
        store: With the registry.
        folder: Of the network, or of what is recommended in its place.
        name: Of the registered model.
        more: Tags of a version that is made.

    Raises:
        SimicError: The folder has no such network.
    """
    try:
        contract = json.loads((folder / "contract.json").read_bytes())
    except (OSError, ValueError) as error:
        raise SimicError(
            f"{folder}: no network of a table, as simic grow saves it: {error}"
        ) from None
    client, experiment_id = store
    digest = seals.content_hash(folder)
    versions = client.search_model_versions(f"name = '{name}'")
    version = next((item for item in versions if item.tags.get(POLICY_TAG) == digest), None)
    if version is None:
        tags = {POLICY_TAG: digest}
        # A version without a run is looked for in MLflow's default store.
        run = client.create_run(experiment_id, None, _origin(""), f"{name}-{digest[:8]}")
        run_id = run.info.run_id
        model = client.create_logged_model(experiment_id, "network", run_id, tags=tags)
        with TemporaryDirectory() as scratch:
            packed = Path(scratch) / "network"
            loader = folder / "predict.py"
            _save(packed, model, folder, loader, (_example_rows(contract), None), NETWORKS_WITH)
            client.log_model_artifacts(model.model_id, str(packed))
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        tags |= {DATA_TAG: contract["data_sha256"], **more}
        version = _register(client, run_id, model, name, tags)
        client.set_terminated(run_id)
        card = (folder / "README.md").read_text(encoding="utf-8")
        client.update_model_version(name, str(version.version), card[:LONGEST_NOTE])
    return client.get_model_version(name, str(version.version))


def _example_rows(contract: Mapping[str, Any]) -> pd.DataFrame:
    """Make rows that fit a contract, and are nobody's."""
    return pd.DataFrame(
        {
            column["name"]: [*(column["levels"] or column["quantiles"])][:1] * EXAMPLE_ROWS
            for column in contract["columns"]
        }
    )


def download(client: MlflowClient, version: ModelVersion, folder: Path) -> Path:
    """Download a registered version; return the folder in it with the files that simic saved.

    Args:
        client: Of the store.
        version: Of a policy or a network.
        folder: Existing; all files of the model are written into it.
    """
    from mlflow.artifacts import download_artifacts
    from mlflow.models import Model

    place = download_artifacts(
        artifact_uri=version.source, dst_path=str(folder), tracking_uri=client.tracking_uri
    )
    files = Path(place) / Model.load(place).flavors["python_function"]["data"]
    # The card of a policy lies beside its files.
    if not (files / "README.md").exists():
        shutil.copy(Path(place) / "README.md", files)
    return files


def _register(
    client: MlflowClient,
    run_id: str,
    model: LoggedModel,
    name: str,
    tags: Mapping[str, str],
) -> ModelVersion:
    """Find the registered version of a model, or register it."""
    # A run that is logged again keeps its version, and with it the alias.
    for version in client.search_model_versions(f"name = '{name}'"):
        if version.source == model.artifact_location:
            return client.get_model_version(
                name, str(version.version)
            )  # what is searched for comes without aliases
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name, description=MODEL_NOTE.format(name=name))
    # Not by models:/id, which MLflow would look up in the default store instead of this client's.
    version = client.create_model_version(
        name, model.artifact_location, run_id, tags=dict(tags), model_id=model.model_id
    )
    # By this tag MLflow's pages lead from the model to its version.
    versions = [{"name": name, "version": version.version}]
    client.set_logged_model_tags(model.model_id, {"mlflow.modelVersions": json.dumps(versions)})
    return version


def registered_name(dataset: str) -> str:
    """Name the registered model of all policies, or networks, that learned from a data set."""
    return f"simic-{re.sub(r'[^A-Za-z0-9._-]+', '-', dataset)}"


def version_with(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """Find the version of a registered model that has an alias.

    Args:
        client: Of the store.
        name: Of the registered model.
        alias: As ``champion``.
    """
    # Searched for, since asking for an alias that nobody has raises an error.
    for model in client.search_registered_models(f"name = '{name}'"):
        if alias in model.aliases:
            return client.get_model_version(name, str(model.aliases[alias]))
    return None


def give_alias(client: MlflowClient, version: ModelVersion, alias: str) -> None:
    """Give an alias to a version, and take it from the one that had it. A champion is no challenger.

    Args:
        client: Of the store.
        version: That gets it.
        alias: As ``champion``; one version has it at most.
    """
    # MLflow moves an alias in one step, so that there is always a champion.
    client.set_registered_model_alias(version.name, alias, str(version.version))
    if alias == CHAMPION:
        take_alias(client, version, CHALLENGER)


def take_alias(client: MlflowClient, version: ModelVersion, alias: str) -> None:
    """Take an alias from a version that has it.

    Args:
        client: Of the store.
        version: That may have it.
        alias: As ``challenger``.
    """
    # Another version may have got it meanwhile.
    holder = version_with(client, version.name, alias)
    if holder is not None and str(holder.version) == str(version.version):
        client.delete_registered_model_alias(version.name, alias)


def _origin(code: str) -> dict[str, str]:
    """Make MLflow's own tags of where a run comes from: command, user, and the commit of a revision ``code``."""
    # mlflow.start_run would set these tags; a run that a client creates has none of them.
    command = " ".join((Path(sys.argv[0]).name, *sys.argv[1:]))
    name_user()
    tags = {
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": command[:LONGEST_COMMAND],
        "mlflow.user": getpass.getuser(),
    }
    # MLflow links the commit alone and has a tag of its own for changes beside it.
    if code:
        commit = code.removesuffix("-dirty")
        tags["mlflow.source.git.commit"] = commit
        tags["mlflow.source.git.dirty"] = str(code != commit).lower()
    return tags


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    with exit_with_message("mlflow"):
        # Before `mlflow ui` is started, which would make the store without the lock.
        try:
            connect(Workspace(Path.cwd()))
        except TROUBLE as trouble:
            raise SimicError(describe(trouble)) from None
