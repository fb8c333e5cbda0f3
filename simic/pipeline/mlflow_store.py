"""Reach MLflow's store: one run per fingerprint, every step exactly once, and training needs none of it.

The run directory is the record; MLflow gets a copy. What is logged when is in mlflow_observer; models are in
mlflow_models, what evaluation and audit found in mlflow_results.
"""

import getpass
import json
import logging
import math
import os
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from simic import durable
from simic.errors import printable
from simic.params import Params
from simic.pipeline.paths import Workspace, sqlite_uri
from simic.telemetry import naming, recorder
from simic.telemetry.columns import Columns, mean_measured
from simic.telemetry.rows import UpdateRow
from simic.training.observers import EndStatus

EXPERIMENT = "simic"
NOTE_TAG = "mlflow.note.content"  # what MLflow shows as the description
NOTE = """One run for each training, and one for each cell of a study.

| metrics | what |
|---|---|
| `compare/…` | what runs are compared by |
| `episode/…` | means over the hosts of an iteration |
| `test/learned` | mean test accuracy of the trained policy, points |
| `update/…` | the PPO update of an iteration |
| `validation/…` | score of the validation episodes |

These are the few that runs are followed and compared by; the run's `telemetry` has every number.
"""
# A view that MLflow's UI offers under this name: without it the table of runs shows no score on a small screen.
VIEW = "scores"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
COLUMNS = ("attributes.`Created`", "metrics.`compare/over_rule`", "metrics.`compare/score`")
# Metrics of an update and of episodes that are logged, and params that always are: more hide what matters.
UPDATE = {
    "policy_loss", "value_loss", "entropy", "entropy_coef", "approx_kl", "clip_fraction", "ratio_max", "grad_norm",
    "learning_rate", "explained_variance", "return_mean", "advantage_std", "stopped_early", "samples",
}  # fmt: skip
EPISODE = {
    "return", "score", "committed_accuracy", "committed_params", "length", "germinated", "fossilized", "pruned",
    "panicked",
}  # fmt: skip
PARAMS = (
    "rng_seed", "prepare.task", "prepare.source", "prepare.suite.name", "train.host", "train.iterations", "train.envs",
    "train.episode_steps", "train.batch", "train.lifecycle.max_seeds", "train.price", "train.reward.mode",
    "train.policy", "train.ppo",
)  # fmt: skip
PUBLISHED_TAG = "simic.checkpoint"  # of a run: what its published checkpoints are
CODE_TAG = "simic.code"  # of a run: the revision of its code
FINGERPRINT_TAG = "simic.fingerprint"  # of a run: the name of its work directory
CONTEXT_TAG = "mlflow.data.context"  # of a data set that a run reads: what for
MARKER = "iteration"  # logged with every point: its largest step is what MLflow already has
END_STATUS: dict[EndStatus, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
MOST_SAID = 500  # characters of a command
LOCK_SECONDS = 1.0  # that another process may hold a local store before it counts as out of reach
DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306}  # where they listen unless the URI says otherwise
TROUBLE = (MlflowException, SQLAlchemyError, OSError, durable.Held)

LOG = logging.getLogger(__name__)
for _noisy in ("mlflow", "alembic"):  # creating the store is a matter of course, not news between lines of progress
    logging.getLogger(_noisy).setLevel(logging.WARNING)
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # errors are raised as well, and said in one line


class RunIdentity(BaseModel, frozen=True):
    """Identify a run and what it is made of."""

    fingerprint: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    dataset: str
    data_sha256: str
    splits: tuple[Mapping[str, str], ...] = ()  # fields of MLflow's data sets, and the context of each


def keeper(workspace: Workspace) -> Workspace:
    """Return whose store is used: the workspace's own; of a copy in which DVC runs an experiment (``--temp``,
    ``--queue``) and which it removes afterwards, that of the project that was copied.
    """
    root, project = workspace.root.resolve(), os.environ.get("DVC_ROOT", "")
    if "DVC_EXP_NAME" in os.environ and root.is_relative_to(Path(project).resolve() / ".dvc" / "tmp"):
        return Workspace(Path(project).resolve())
    return Workspace(root)


def store_uri(workspace: Workspace) -> str:
    """Return the server named by MLFLOW_TRACKING_URI, else the stock store of this project by absolute path."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(keeper(workspace).root / "mlflow.db")


def refuse_unusable(workspace: Workspace) -> None:
    """Raise OSError where a store that is a file cannot be written, or a database server does not answer, within
    ``LOCK_SECONDS``; MLflow would wait 20 seconds at every query of the one, and an hour for the other.
    """
    uri = store_uri(workspace)
    address = urlsplit(uri)
    port = DATABASE_PORTS.get(address.scheme.partition("+")[0])
    if port is not None:
        socket.create_connection((address.hostname or "localhost", address.port or port), LOCK_SECONDS).close()
    file = Path(unquote(uri.removeprefix("sqlite:///")))
    if not uri.startswith("sqlite:///") or not file.exists():
        return
    try:
        with closing(sqlite3.connect(file, timeout=LOCK_SECONDS, isolation_level=None)) as store:
            store.execute("BEGIN IMMEDIATE")
            store.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise OSError(f"{file}: {error}") from None


def connect(workspace: Workspace) -> tuple[MlflowClient, str]:
    """Return a client and the id of the experiment, both made on first use; OSError where the store of this project
    keeps its files in another.

    The first initialisation from several processes at once destroys the database (mlflow #19943), hence the lock.
    """
    server = os.environ.get("MLFLOW_TRACKING_URI")  # which keeps its files wherever it likes
    project = keeper(workspace)
    own = None if server else (project.root / "mlruns" / EXPERIMENT).as_uri()
    with durable.locked(project.state / "mlflow.lock", "opens MLflow's store", 60):
        client = MlflowClient(tracking_uri=store_uri(workspace), registry_uri=store_uri(workspace))
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            view = {"orderByKey": "attributes.start_time", "orderByAsc": False, "selectedColumns": COLUMNS}
            tags = {"mlflow.experimentKind": "custom_model_development", NOTE_TAG: NOTE, VIEW_TAG: json.dumps(view)}
            return client, client.create_experiment(EXPERIMENT, artifact_location=own, tags=tags)
    if own is not None and experiment.artifact_location != own:
        # MLflow keeps absolute paths: a copied project would write into the first one, a moved one to where it was.
        raise OSError(
            f"{project.root / 'mlflow.db'} keeps its files in {experiment.artifact_location}: the project "
            "was copied or moved. To go on here, with what was logged still to be seen, run in its folder: "
            f"mlflow experiments rename --experiment-id {experiment.experiment_id} "
            f"--new-name {EXPERIMENT}-{experiment.experiment_id}"
        )
    return client, experiment.experiment_id


def origin(code: str) -> dict[str, str]:
    """Return MLflow's own tags of where a run comes from: command, user, and the commit of a revision ``code``."""
    command = " ".join((Path(sys.argv[0]).name, *sys.argv[1:]))
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # containers run under numbers that nobody has given a name
        user = str(os.getuid())
    tags = {"mlflow.source.type": "LOCAL", "mlflow.source.name": command[:MOST_SAID], "mlflow.user": user}
    if code:
        commit = code.removesuffix("-dirty")
        tags |= {"mlflow.source.git.commit": commit, "mlflow.source.git.dirty": str(code != commit).lower()}
    return tags


class MlflowRun:
    """Find or make the MLflow run of one fingerprint, and log to it."""

    def __init__(self, workspace: Workspace, identity: RunIdentity):
        self.client, self.experiment_id = connect(workspace)
        self.identity, self.name = identity, naming.run_name(identity.fingerprint)
        known = find_run(self.client, self.experiment_id, FINGERPRINT_TAG, identity.fingerprint)
        self.run_id = known or self._create(identity)

    def _create(self, identity: RunIdentity) -> str:
        own = {FINGERPRINT_TAG: identity.fingerprint, **origin(identity.tags.get(CODE_TAG, ""))}
        tags = {**own, **identity.tags}
        run_id = self.client.create_run(self.experiment_id, run_name=self.name, tags=tags).info.run_id
        params = [Param(key, value) for key, value in identity.params.items()]
        self.client.log_batch(run_id, params=params)
        self.client.log_inputs(run_id, [_input(**split) for split in identity.splits])
        return run_id

    def started(self) -> None:
        """Note that training starts or resumes here."""
        self.client.update_run(self.run_id, status="RUNNING")

    def ended(self, status: EndStatus) -> None:
        """Note that training ended: finished, interrupted (and resumable) or failed."""
        self.client.set_terminated(self.run_id, END_STATUS[status])

    def log(self, folder: Path) -> None:
        """Send the iterations of a telemetry log that MLflow lacks, each with its marker in one transaction."""
        last = int(self.client.get_run(self.run_id).data.metrics.get(MARKER, -1))
        newest_first = [*recorder.read(folder)][::-1]
        late = [*takewhile(lambda file: file.update is None or file.update.iteration > last, newest_first)]
        for file in late[::-1]:
            if (update := file.update) is not None:
                metrics = {**metrics_of(update, file.columns("train")), MARKER: float(update.iteration)}
                stamp = file.path.stat().st_mtime_ns // 1_000_000
                points = [Metric(key, value, stamp, update.iteration) for key, value in metrics.items()]
                self.client.log_batch(self.run_id, metrics=points)

    def tag(self, tags: Mapping[str, str]) -> None:
        self.client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in tags.items()])


def _input(context: str, **fields: str) -> DatasetInput:
    return DatasetInput(Dataset(**fields), [InputTag(CONTEXT_TAG, context)])


def find_run(client: MlflowClient, experiment_id: str, tag: str, value: str) -> str | None:
    """Return the id of the youngest run with this tag, deleted ones aside."""
    runs = client.search_runs([experiment_id], f"tags.`{tag}` = '{value}'", max_results=1)
    return runs[0].info.run_id if runs else None


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield leaves of a nested mapping: ``("train.ppo.gamma", "0.995")``."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value)


def params_of(tree: Params) -> dict[str, str]:
    """Return the params by which runs are told apart, and all that differ from the defaults."""
    values, usual = (dict(flatten(each.model_dump(mode="json", exclude={"runtime"}))) for each in (tree, Params()))
    return {key: value for key, value in values.items() if key.startswith(PARAMS) or value != usual.get(key)}


def metrics_of(update: UpdateRow, episode: Columns) -> dict[str, float]:
    """Return the metrics of one iteration: those of the update by name, and the means over hosts of its episodes.

    A missing measurement (NaN) is left out, never logged as 0.
    """
    metrics = {f"update/{name}": value for name, value in update.metrics.items() if name in UPDATE}
    metrics |= {f"episode/{name}": mean_measured(values) for name, values in episode.items() if name in EPISODE}
    metrics["validation/score"] = update.validation_accuracy
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def measure(client: MlflowClient, run_id: str, measured: Mapping[str, float], steps: Mapping[str, int]) -> None:
    """Log numbers of a run, and the step of each; a value that is there already is not logged again."""
    known, stamp = client.get_run(run_id).data.metrics, time.time_ns() // 1_000_000
    new = [Metric(key, value, stamp, steps[key]) for key, value in measured.items() if known.get(key) != value]
    client.log_batch(run_id, metrics=new)


def warn(error: Exception) -> None:
    """Warn of what MLflow raised; the run goes on."""
    LOG.warning("logging to MLflow failed, the run continues without it: %s", printable(in_one_line(error)))


def in_one_line(error: Exception) -> str:
    """Join the lines of a library's message."""
    return " ".join(str(error).split())
