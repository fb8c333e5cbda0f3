"""Log checkpoints and policy of a run as MLflow's models, and register versions of the policy."""

import importlib.metadata
import json
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Dataset, LoggedModel, LoggedModelOutput, LoggedModelStatus, Metric
from mlflow.entities.model_registry import ModelVersion
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec

from simic import durable
from simic.pipeline.mlflow_store import PUBLISHED_TAG, MlflowRun, measure
from simic.pipeline.paths import Workspace

REGISTERED_NOTE = """Controllers of {dataset}, greedy. With torch and numpy, without simic:

    mlflow.pyfunc.load_model("models:/{name}@champion")
"""
CHAMPION, CHALLENGER = "champion", "challenger"  # aliases of its versions
POLICY = "policy"  # the model that is registered
CHECKPOINT = "checkpoint-"  # how the names of the others begin
VERSIONS_TAG = "mlflow.modelVersions"  # of a model: by it MLflow's pages lead to its versions
DATA_TAG = "simic.data_sha256"  # of a version: the data that it was trained on
COMPARE = "compare/"  # sorts before every other group of metrics, as MLflow sorts them: by the name
VALIDATION_SCORE = f"{COMPARE}validation_score"
AS_A_WHOLE = 0  # the step of metrics that runs are compared by: with step 0 alone MLflow draws bars, run beside run
OF_CHECKPOINTS = ("episode/", "validation/")  # metrics of training that say what a checkpoint is worth
MOST_DESCRIBED = 5000  # characters of a description that MLflow's tables have room for
LOADER = Path(__file__).with_name("simic_policy.py")
LOADS_WITH, BUILDS_WITH = ("mlflow", "numpy", "torch"), "pip, setuptools, wheel"
MILLISECONDS = 1000.0  # in a second
# As MLflow names the parts of a model.
CODE, ENVIRONMENT = "code", "python_env.yaml"
EXAMPLE = {"artifact_path": "input_example.json", "serving_input_path": "serving_input_example.json", "type": "ndarray"}
EXAMPLE_ROWS = 2  # with one row a reader could not tell which axis is the batch


def publish(run: MlflowRun, workspace: Workspace) -> None:
    """Log the published checkpoints and the policy as models with params and metrics, and register the policy; what is
    there already stays.
    """
    made, client = dict[str, LoggedModel](), run.client
    manifests = {
        path.parent.name: json.loads(path.read_bytes()) for path in workspace.checkpoints.glob("*/manifest.json")
    }
    for name, manifest in sorted(manifests.items()):
        done = manifest["iteration"]
        made[name] = _added(run, CHECKPOINT + name, done, workspace.checkpoints / name)
        measured = client.get_run(run.run_id).data.metrics
        last = done - 1  # iterations are counted from 0
        worth = {key: last for key in measured if key.startswith(OF_CHECKPOINTS)}
        link(client, run.run_id, [made[name]], worth)
    best = manifests["best"]
    policy = _added(run, POLICY, best["iteration"], workspace.models)
    score = best["scalars"]["best_score"]  # None where there were no validation episodes
    if score is not None and not client.get_metric_history(run.run_id, VALIDATION_SCORE):
        measure(client, run.run_id, {VALIDATION_SCORE: score}, {VALIDATION_SCORE: AS_A_WHOLE})
    link(client, run.run_id, [made["best"], policy], {VALIDATION_SCORE: AS_A_WHOLE})
    _register(run, policy)
    run.tag({PUBLISHED_TAG: checkpoint_digest(workspace)})


def _added(run: MlflowRun, name: str, done: int, folder: Path) -> LoggedModel:
    """Return the run's complete model of this name; make it where there is none, and list it as an output."""
    whole = models(run.client, run.experiment_id, run.run_id, name)
    if whole:
        model = whole[0]
    else:
        params = {**run.identity.params, "iteration": str(done)}
        made = run.client.create_logged_model(run.experiment_id, name, run.run_id, params=params)
        with TemporaryDirectory() as scratch:
            files = package(folder, Path(scratch) / POLICY, made) if name == POLICY else folder
            run.client.log_model_artifacts(made.model_id, str(files))
        model = run.client.finalize_logged_model(made.model_id, LoggedModelStatus.READY)
    outputs = run.client.get_run(run.run_id).outputs
    if model.model_id not in [each.model_id for each in (outputs.model_outputs if outputs else ())]:
        run.client.log_outputs(run.run_id, [LoggedModelOutput(model.model_id, done)])
    return model


def models(client: MlflowClient, experiment_id: str, run_id: str, name: str) -> list[LoggedModel]:
    """Return the complete models of this name of a run."""
    mine = f"source_run_id = '{run_id}' AND name = '{name}'"
    matching = client.search_logged_models([experiment_id], filter_string=mine)
    return [model for model in matching if model.status == LoggedModelStatus.READY]


def link(
    client: MlflowClient,
    run_id: str,
    made: Sequence[LoggedModel],
    steps: Mapping[str, int],
    data: Dataset | None = None,
) -> None:
    """Link measured points of a run, by metric and step, to models, with the data they were measured on.

    To MLflow a point with the value, step and time of an existing one is the same point, so the run keeps it once.
    """
    newest: list[Metric] = []
    for key, step in steps.items():
        points = [point for point in client.get_metric_history(run_id, key) if point.step == step]
        newest += sorted(points, key=lambda point: point.timestamp)[-1:]
    used = (data.name, data.digest) if data else (None, None)
    for model in made:
        linked = client.get_logged_model(model.model_id).metrics or ()
        known = {(each.key, each.step, each.value) for each in linked}
        missing = [
            Metric(point.key, point.value, point.timestamp, point.step, model.model_id, *used, run_id)
            for point in newest
            if (point.key, point.step, point.value) not in known
        ]
        if missing:
            client.log_batch(run_id, metrics=missing)


def package(policy: Path, folder: Path, model: LoggedModel) -> Path:
    """Copy a policy to a new folder with what makes an MLflow model of it: MLmodel, loader, requirements, an example.

    Nothing is pickled, and the same policy and model make the same bytes. mlflow.pyfunc.save_model would do it too, but
    its import takes seconds and warns of types inside MLflow.
    """
    shutil.copytree(policy, folder)
    described = json.loads((folder / "program" / "policy.json").read_bytes())
    (folder / CODE).mkdir()
    shutil.copy(LOADER, folder / CODE)
    pins = [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in LOADS_WITH]
    python = platform.python_version()
    example = {name: tensor.tolist() for name, tensor in _example(described["inputs"]).items()}
    files = {
        "requirements.txt": "\n".join(pins) + "\n",
        ENVIRONMENT: f"python: {python}\nbuild_dependencies: [{BUILDS_WITH}]\ndependencies: [-r requirements.txt]\n",
        EXAMPLE["artifact_path"]: json.dumps(example),
        EXAMPLE["serving_input_path"]: json.dumps({"inputs": example}),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    written = Model(
        model_id=model.model_id,
        model_uuid=model.model_id,
        run_id=model.source_run_id,
        utc_time_created=str(datetime.fromtimestamp(model.creation_timestamp / MILLISECONDS, UTC).replace(tzinfo=None)),
        signature=signature(described),
        saved_input_example_info=EXAMPLE,
    )
    written.add_flavor(
        "python_function", loader_module=LOADER.stem, python_version=python, code=CODE, env={"virtualenv": ENVIRONMENT}
    )
    written.save(str(folder / "MLmodel"))
    return folder


def signature(described: Mapping[str, Any]) -> ModelSignature:
    """Return the signature of a program: every tensor by name, the batch of any size."""
    heads = described["heads"]
    given = {name: (each["dtype"], (-1, *each["shape"][1:])) for name, each in described["inputs"].items()}
    real = given["h"][0]
    outputs = {
        "actions": ("int64", (-1, len(heads))),
        "op_logits": (real, (-1, heads[0]["size"])),
        "value": (real, (-1,)),
        "h": given["h"],
        "c": given["c"],
    }
    return ModelSignature(inputs=_schema(given), outputs=_schema(outputs))


def _schema(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Schema:
    return Schema([TensorSpec(np.dtype(dtype), shape, name) for name, (dtype, shape) in tensors.items()])


def _example(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return inputs for hosts at the start of an episode, every action allowed."""
    shapes = {name: (EXAMPLE_ROWS, *each["shape"][1:]) for name, each in inputs.items()}
    return {name: np.full(shapes[name], name.startswith("mask_"), each["dtype"]) for name, each in inputs.items()}


def _register(run: MlflowRun, model: LoggedModel) -> None:
    """Register the next version of the policy, once per run. It has no alias before its audit."""
    client, dataset = run.client, run.identity.dataset
    name = registered_name(dataset)
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name, description=REGISTERED_NOTE.format(name=name, dataset=dataset))
    versions = versions_of(client, run.run_id)
    if not versions:
        # not models:/id, which MLflow would look up in the default store instead of this client's
        source, tags = model.artifact_location, {DATA_TAG: run.identity.data_sha256}
        versions = [client.create_model_version(name, source, run.run_id, tags=tags, model_id=model.model_id)]
    known_as = [{"name": name, "version": version.version} for version in versions]
    client.set_logged_model_tags(model.model_id, {VERSIONS_TAG: json.dumps(known_as)})


def registered_name(dataset: str) -> str:
    """Return the name of the registered model of all policies that learned from this."""
    return f"simic-{re.sub(r'[^A-Za-z0-9._-]+', '-', dataset)}"


def versions_of(client: MlflowClient, run_id: str) -> list[ModelVersion]:
    """Return the registered versions of a run's policy: one or none."""
    return list(client.search_model_versions(f"run_id = '{run_id}'"))


def audited(client: MlflowClient, run_id: str, sound: bool) -> None:
    """Make the policy of an audited run the challenger where the audit is ``sound``, and take that away where not.
    A champion is no challenger.
    """
    for version in versions_of(client, run_id):
        name, number, holders = version.name, str(version.version), aliases(client, version.name)
        if sound and holders.get(CHAMPION) != number:
            client.set_registered_model_alias(name, CHALLENGER, number)
        elif not sound and holders.get(CHALLENGER) == number:
            client.delete_registered_model_alias(name, CHALLENGER)


def aliases(client: MlflowClient, name: str) -> dict[str, str]:
    """Return the version of a registered model that has each alias."""
    registered = client.search_registered_models(f"name = '{name}'")
    return {alias: str(number) for model in registered for alias, number in model.aliases.items()}


def log_card(client: MlflowClient, experiment_id: str, run_id: str, workspace: Workspace) -> None:
    """Log the model card beside the files of the policy, and as the description of its version."""
    if not workspace.model_card.exists():
        return
    text = workspace.model_card.read_text(encoding="utf-8")
    for version in versions_of(client, run_id):
        client.update_model_version(version.name, str(version.version), text[:MOST_DESCRIBED])
    for model in models(client, experiment_id, run_id, POLICY):
        with TemporaryDirectory() as folder:
            (Path(folder) / "README.md").write_text(text, encoding="utf-8")
            client.log_model_artifacts(model.model_id, folder)


def checkpoint_digest(workspace: Workspace) -> str:
    """Return the hash by which the run of the published checkpoints is found again; empty when there are none."""
    manifest = workspace.checkpoints / "latest" / "manifest.json"
    return durable.sha256(manifest) if manifest.exists() else ""
