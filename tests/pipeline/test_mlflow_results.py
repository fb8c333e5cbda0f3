"""What a person compares in MLflow: models with what they are worth, data sets, origin and params of a run."""

import json
import shutil
from pathlib import Path

import mlflow.data
import pytest

from simic import params
from simic.pipeline import engine, mlflow_datasets, mlflow_models, mlflow_observer, mlflow_results, mlflow_store
from simic.pipeline.paths import Workspace
from simic.telemetry.columns import EPISODES
from tests import standard
from tests.helpers import ROOT, episode, update
from tests.pipeline.mlflow_runs import CODE, ITERATIONS, NAME, begun, finished, info_of, run_of


def measured(workspace: Workspace, name: str) -> dict[str, tuple[int, float]]:
    """Step and value of every metric of a model."""
    client, experiment_id, run_id = run_of(workspace)
    [model] = mlflow_models.models(client, experiment_id, run_id, name)
    return {each.key: (each.step, each.value) for each in client.get_logged_model(model.model_id).metrics or []}


def test_metrics_are_those_of_the_rows_and_missing_ones_are_left_out() -> None:
    row = update(3)
    found = mlflow_store.metrics_of(row.model_copy(update={"metrics": {**row.metrics, "other": 1.0}}), episode())
    assert found["update/policy_loss"] == 0.25
    assert found["episode/return"] == 1.5  # (1 + 2) / 2
    assert found["episode/committed_accuracy"] == 40.0  # the other host was not measured
    assert found["episode/panicked"] == 0.5
    assert not {"update/grad_norm", "update/other", "validation/score"} & found.keys()


def test_a_run_has_few_metrics_and_params_and_a_view_that_shows_its_score(workspace: Workspace) -> None:
    finished(workspace)
    mlflow_observer.log_report(workspace, NAME, {}, sound=True)
    client, experiment_id, run_id = run_of(workspace)
    of_training = len(mlflow_store.UPDATE) + len(mlflow_store.EPISODE) + len(("validation/score", mlflow_store.MARKER))
    others = [name for name in client.get_run(run_id).data.metrics if name.startswith(("compare/", "test/"))]
    assert of_training + len(others) <= 40 and EPISODES.keys() > mlflow_store.EPISODE
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert not [name for name in mlflow_store.UPDATE if f"`{name}`" not in page]
    assert len(mlflow_store.params_of(params.load(ROOT / "params.yaml"))) <= 60
    view = json.loads(client.get_experiment(experiment_id).tags[mlflow_store.VIEW_TAG])
    assert "metrics.`compare/score`" in view["selectedColumns"]
    shown = f"#/experiments/{experiment_id}/runs?viewStateShareKey=scores&workflowType=machine_learning"
    assert mlflow_results.runs_address(workspace).endswith(shown)


def test_checkpoints_and_policy_are_models_with_what_was_measured_and_the_policy_is_registered(
    workspace: Workspace,
) -> None:
    watcher = finished(workspace)
    best, latest = measured(workspace, "checkpoint-best"), measured(workspace, "checkpoint-latest")
    assert best["episode/return"] == (1, 1.5) and latest["episode/return"] == (3, 1.5)  # of the last iteration before
    assert best["compare/validation_score"] == (0, 77.5) and "compare/validation_score" not in latest
    assert measured(workspace, "policy") == {"compare/validation_score": (0, 77.5)}
    assert not [key for key in best if key.startswith("update/") or key == mlflow_store.MARKER]
    client, experiment_id, run_id = run_of(workspace)
    before = {key: client.get_metric_history(run_id, key) for key in client.get_run(run_id).data.metrics}
    watcher.publish()  # again: nothing is doubled
    assert {key: client.get_metric_history(run_id, key) for key in before} == before
    models = client.search_logged_models([experiment_id])
    assert {model.name: model.params["iteration"] for model in models} == ITERATIONS and len(models) == len(ITERATIONS)
    assert all(model.params["train.ppo.gamma"] == str(standard.PPOParams().gamma) for model in models)
    outputs = client.get_run(run_id).outputs.model_outputs
    assert sorted(each.step for each in outputs) == sorted(map(int, ITERATIONS.values()))
    [version] = client.search_model_versions("name = 'simic-digits'")
    assert (str(version.version), version.run_id, list(version.aliases)) == ("1", run_id, [])
    assert version.tags == {"simic.data_sha256": "d" * 64}
    [weights] = (workspace.root / "mlruns").rglob("weights.safetensors")
    assert weights.as_uri().startswith(version.source or "no source")


def test_report_and_evaluation_are_on_the_run_its_models_and_the_test_data(workspace: Workspace) -> None:
    finished(workspace)
    for lock in ("76", "77"):  # the second is another audit of the same run
        mlflow_observer.log_report(workspace, NAME, {"simic.dvc_lock": lock}, sound=True)
    client, experiment_id, run_id = run_of(workspace)
    expected = {"test/learned": (2, 81.0), "compare/score": (0, 80.0), "compare/gap_closed": (0, 0.25)}
    for name, point in expected.items():
        assert [(each.step, each.value) for each in client.get_metric_history(run_id, name)] == [point]
    for name in ("checkpoint-best", "policy"):
        assert measured(workspace, name).items() >= {**expected, "compare/grave_findings": (0, 1.0)}.items()
        [model] = mlflow_models.models(client, experiment_id, run_id, name)
        of_data = {each.key: (each.dataset_name, each.dataset_digest) for each in model.metrics or []}
        assert of_data["compare/score"] == of_data["test/learned"] == ("digits-test", "test" * 9)
        assert of_data["compare/validation_score"] == (None, None)
    assert "compare/score" not in measured(workspace, "checkpoint-latest")
    by_score = [{"field_name": "metrics.compare/score", "ascending": False}]
    [first] = client.search_logged_models([experiment_id], order_by=by_score, max_results=1)
    assert first.name in ("checkpoint-best", "policy")
    tags = client.get_run(run_id).data.tags
    assert (tags["simic.verdict"], tags["simic.dvc_lock"]) == ("high", "77")  # the critical check passed
    assert {"report.html", "findings.json"} <= {artifact.path for artifact in client.list_artifacts(run_id)}
    assert [drawn.path for drawn in client.list_artifacts(run_id, "figures")] == ["figures/learning.svg"]
    version = client.get_model_version_by_alias("simic-digits", "challenger")
    assert (version.run_id, version.description) == (run_id, "# A controller")
    [card] = (workspace.root / "mlruns").glob("*/models/*/artifacts/README.md")
    assert card.read_text() == workspace.model_card.read_text() and card.parent.as_uri() == version.source


@pytest.mark.parametrize(("code", "commit"), [(CODE, CODE), (f"{CODE}-dirty", CODE), ("", None)])
def test_a_run_says_what_it_is_and_where_it_comes_from(code: str, commit: str | None, workspace: Workspace) -> None:
    begun(workspace, code=code)
    client, experiment_id, run_id = run_of(workspace)
    run = client.get_run(run_id)
    tags = run.data.tags
    assert run.info.run_name == NAME and tags["simic.code"] == code
    assert tags["mlflow.source.type"] == "LOCAL" and tags["mlflow.source.name"] and tags["mlflow.user"]
    assert tags.get("mlflow.source.git.commit") == commit
    assert tags.get("mlflow.source.git.dirty") == (None if commit is None else str(code != commit).lower())
    assert "compare/" in client.get_experiment(experiment_id).tags["mlflow.note.content"]
    assert run.data.params["train.ppo.gamma"] == str(standard.PPOParams().gamma)
    assert not [name for name in run.data.params if name.startswith("runtime")]


def test_every_split_is_a_data_set_of_the_same_digest_wherever_it_lies(workspace: Workspace, prepared: Path) -> None:
    elsewhere = Workspace(workspace.root / "elsewhere")
    for each in (workspace, elsewhere):
        shutil.copytree(prepared, each.prepared)
    assert mlflow_datasets.described(elsewhere) == mlflow_datasets.described(workspace)
    _, watcher = engine.observers(standard.Params(), workspace)
    watcher.on_start(info_of(workspace))
    client, _, run_id = run_of(workspace)
    given = client.get_run(run_id).inputs.dataset_inputs
    uses = {each.tags[0].value: each.dataset for each in given}
    assert uses.keys() == {"training", "validation", "testing"}
    assert len({each.digest for each in uses.values()}) == 3  # train and val are in one file
    for name, use in mlflow_datasets.CONTEXTS.items():
        assert uses[use].name == f"digits-{name}"
        assert (workspace.root / mlflow.data.get_source(uses[use]).to_dict()["uri"]).is_file()
