"""Log what evaluation and audit found to the run of the published checkpoints, its models and its test data."""

import json
import os
from collections.abc import Mapping, Sequence

from mlflow import MlflowClient
from mlflow.entities import Dataset, LoggedModel, RunTag

from simic.pipeline.mlflow_models import (
    AS_A_WHOLE,
    CHECKPOINT,
    COMPARE,
    POLICY,
    audited,
    checkpoint_digest,
    link,
    log_card,
    models,
)
from simic.pipeline.mlflow_store import (
    CONTEXT_TAG,
    LOG,
    PUBLISHED_TAG,
    TROUBLE,
    VIEW,
    connect,
    find_run,
    measure,
    warn,
)
from simic.pipeline.paths import UI_VARIABLE, Workspace
from simic.telemetry.rows import SEVERITIES

GRAVE = ("critical", "high")
LEARNED = "test/learned"
REACHED, OF_GYM = "test_accuracy_pct", "mean_return"  # in points; of a Gymnasium environment


def send_report(workspace: Workspace, tags: Mapping[str, str], sound: bool) -> None:
    """Log report, findings and verdict to the run of the published checkpoints. Its policy is the challenger from now
    on where the audit is ``sound``: not refuted.
    """
    client, experiment_id = connect(workspace)
    run_id = find_run(client, experiment_id, PUBLISHED_TAG, checkpoint_digest(workspace))
    if run_id is None:
        LOG.warning("MLflow has no run of these checkpoints, so the report is not logged there")
        return
    for file in sorted(set(workspace.reports.glob("*.*")) - {workspace.promotion}):
        client.log_artifact(run_id, str(file))
    if workspace.figures.exists():
        client.log_artifacts(run_id, str(workspace.figures), workspace.figures.name)
    results = json.loads((workspace.reports / "findings.json").read_bytes())["results"]
    found = [result["severity"] for result in results if result["status"] == "finding"]
    grave = {"grave_findings": float(sum(severity in GRAVE for severity in found))}
    log_evaluation(client, run_id, workspace, _evaluated(client, experiment_id, run_id, workspace), grave)
    worst = max(found, key=SEVERITIES.index, default="none")
    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in {**tags, "simic.verdict": worst}.items()])
    audited(client, run_id, sound)
    log_card(client, experiment_id, run_id, workspace)


def address(workspace: Workspace) -> str | None:
    """Return the address of the published run in MLflow's UI; None where MLflow lacks it, or does not answer."""
    try:
        client, experiment_id = connect(workspace)
        run_id = find_run(client, experiment_id, PUBLISHED_TAG, checkpoint_digest(workspace))
    except TROUBLE as error:
        warn(error)
        return None
    return run_id and f"{_ui()}/#/experiments/{experiment_id}/runs/{run_id}"


def runs_address(workspace: Workspace) -> str:
    """Return the address of the table of runs in MLflow's UI, by score; of all experiments where MLflow does not
    answer.
    """
    try:
        _, experiment_id = connect(workspace)
    except TROUBLE as error:
        warn(error)
        return f"{_ui()}/#/experiments?workflowType=machine_learning"
    return f"{_ui()}/#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW}&workflowType=machine_learning"


def _ui() -> str:
    return os.environ.get(UI_VARIABLE, "http://127.0.0.1:5000")


def _evaluated(client: MlflowClient, experiment_id: str, run_id: str, workspace: Workspace) -> list[LoggedModel]:
    """Return the checkpoint that was evaluated, and the policy where it is of that one."""
    if not workspace.evaluation.exists():
        return []
    checkpoint = json.loads(workspace.evaluation.read_bytes())["checkpoint"]
    names = [f"{CHECKPOINT}{checkpoint}", *([POLICY] if checkpoint == "best" else [])]
    return [model for name in names for model in models(client, experiment_id, run_id, name)]


def log_evaluation(
    client: MlflowClient,
    run_id: str,
    workspace: Workspace,
    evaluated: Sequence[LoggedModel] = (),
    more: Mapping[str, float] | None = None,
) -> None:
    """Log the mean test accuracy of the trained policy, in points, and the numbers of metrics.json, with ``more``, for
    the run and its ``evaluated`` models; a value that is there already is not logged again.
    """
    if not workspace.evaluation.exists():
        return
    evaluation = json.loads(workspace.evaluation.read_bytes())
    step = evaluation["checkpoint_iteration"] or 0
    compared = dict(more or {})
    if workspace.metrics.exists():
        compared |= json.loads(workspace.metrics.read_bytes())
    numbers = {f"{COMPARE}{name}": value for name, value in compared.items()}
    steps = dict.fromkeys(numbers, AS_A_WHOLE)
    if (learned := evaluation["policies"].get("learned")) is not None:
        numbers[LEARNED], steps[LEARNED] = learned[REACHED if REACHED in learned else OF_GYM]["estimate"], step
    measure(client, run_id, numbers, steps)
    if evaluated:
        link(client, run_id, evaluated, steps, _test_data(client, run_id))


def _test_data(client: MlflowClient, run_id: str) -> Dataset | None:
    """Return the data set that the run was tested on; None where none was named."""
    inputs = client.get_run(run_id).inputs
    used = ((each, {tag.key: tag.value for tag in each.tags}) for each in (inputs.dataset_inputs if inputs else ()))
    return next((each.dataset for each, tags in used if tags.get(CONTEXT_TAG) == "testing"), None)
