"""What a person compares in MLflow: models with what they are worth, data sets, origin and description of a run."""

import json
import shutil
from pathlib import Path

import mlflow.data
import pytest

from simic.data.batches import read_meta
from simic.pipeline import engine, mlflow_datasets, mlflow_models, mlflow_observer, mlflow_store
from simic.pipeline.mlflow_observer import MlflowObserver
from simic.pipeline.paths import Workspace
from tests import standard
from tests.pipeline.test_mlflow_debts import failing
from tests.pipeline.test_mlflow_store import ITERATIONS, NAME, info_of, publish_files, run_of, steps, train

CODE = "c0ffee" * 6 + "abcd"


def split(name: str, context: str) -> dict[str, str]:
    named = {"context": context, "name": f"digits-{name}", "digest": (name * 16)[:36]}
    return named | {"source_type": "local", "source": "{}", "schema": "", "profile": ""}


SPLITS = (split("train", "training"), split("val", "validation"), split("test", "testing"))


def observer(workspace: Workspace, code: str = CODE) -> MlflowObserver:
    """Of a run that knows its splits."""
    watcher = MlflowObserver(workspace, standard.Params(), {"simic.code": code}, SPLITS)
    watcher.on_start(info_of(workspace))
    return watcher


def finished(workspace: Workspace) -> MlflowObserver:
    """Four iterations, whose checkpoints are published."""
    watcher = observer(workspace)
    train(watcher, workspace, range(4))
    watcher.on_end("finished")
    publish_files(workspace)
    watcher.publish()
    return watcher


def measured(workspace: Workspace, name: str) -> dict[str, tuple[int, float]]:
    """Step and value of every metric of a model."""
    client, experiment_id, run_id = run_of(workspace)
    [model] = mlflow_models.models(client, experiment_id, run_id, name)
    found = client.get_logged_model(model.model_id).metrics or []
    assert len({each.key for each in found}) == len(found)
    return {each.key: (each.step, each.value) for each in found}


def test_every_checkpoint_has_what_training_measured_of_it_and_the_run_has_that_once(workspace: Workspace) -> None:
    watcher = finished(workspace)
    client, _, run_id = run_of(workspace)
    before = {key: client.get_metric_history(run_id, key) for key in client.get_run(run_id).data.metrics}
    best, latest = measured(workspace, "checkpoint-best"), measured(workspace, "checkpoint-latest")
    assert best["episode/return"] == (1, 1.5) and latest["episode/return"] == (3, 1.5)  # of the last iteration before
    assert best["compare/validation_score"] == (0, 77.5) and "compare/validation_score" not in latest
    assert measured(workspace, "policy") == {"compare/validation_score": (0, 77.5)}
    assert not [key for key in best if key.startswith("update/") or key == mlflow_store.MARKER]
    watcher.publish()
    for key, history in before.items():
        assert [point.step for point in history] == sorted({point.step for point in history}), key
        assert client.get_metric_history(run_id, key) == history
    outputs = client.get_run(run_id).outputs.model_outputs
    assert sorted(each.step for each in outputs) == sorted(map(int, ITERATIONS.values()))
    for each in outputs:
        assert client.get_logged_model(each.model_id).tags["mlflow.source.git.commit"] == CODE


def test_a_model_that_was_not_told_all_is_told_the_rest(workspace: Workspace) -> None:
    watcher = observer(workspace)
    train(watcher, workspace, range(4))
    watcher.on_end("finished")
    publish_files(workspace)
    with failing("log_outputs"):
        watcher.publish()
    watcher.publish()
    client, _, run_id = run_of(workspace)
    assert len(client.get_run(run_id).outputs.model_outputs) == len(ITERATIONS)
    assert measured(workspace, "checkpoint-best")["episode/return"] == (1, 1.5)


def test_what_evaluation_measured_counts_for_model_and_test_data(workspace: Workspace) -> None:
    finished(workspace)
    for _ in range(2):
        mlflow_observer.log_report(workspace, NAME, {}, sound=True)
    client, experiment_id, run_id = run_of(workspace)
    for name in ("checkpoint-best", "policy"):
        found = measured(workspace, name)
        assert found["compare/score"] == (0, 80.0) and found["test/learned"] == (2, 81.0)
        assert found["compare/grave_findings"] == (0, 1.0)
        [model] = mlflow_models.models(client, experiment_id, run_id, name)
        of_data = {each.key: (each.dataset_name, each.dataset_digest) for each in model.metrics or []}
        assert of_data["compare/score"] == of_data["test/learned"] == ("digits-test", "test" * 9)
        assert of_data["compare/validation_score"] == (None, None)
    assert "compare/score" not in measured(workspace, "checkpoint-latest")
    assert [point.value for point in client.get_metric_history(run_id, "compare/score")] == [80.0]
    best = client.search_logged_models(
        [experiment_id], order_by=[{"field_name": "metrics.compare/score", "ascending": False}], max_results=1
    )
    assert best[0].name in ("checkpoint-best", "policy")


def test_a_model_that_was_not_told_of_its_evaluation_is_told_later(workspace: Workspace) -> None:
    """MLflow was gone between the run's numbers and those of its models."""
    finished(workspace)
    with failing("get_logged_model"):
        mlflow_observer.log_report(workspace, NAME, {}, sound=True)
    mlflow_observer.log_report(workspace, NAME, {}, sound=True)
    assert measured(workspace, "policy")["compare/score"] == (0, 80.0)
    assert steps(workspace, "compare/score") == [0]


@pytest.mark.parametrize(("code", "commit"), [(CODE, CODE), (f"{CODE}-dirty", CODE), ("", None)])
def test_a_run_says_what_it_is_and_where_it_comes_from(code: str, commit: str | None, workspace: Workspace) -> None:
    observer(workspace, code)
    client, experiment_id, run_id = run_of(workspace)
    run = client.get_run(run_id)
    assert run.info.run_name == NAME
    tags, train_params = run.data.tags, standard.Params().train
    assert f"{train_params.iterations} iterations of {train_params.envs}" in tags["mlflow.note.content"]
    assert tags["mlflow.source.type"] == "LOCAL" and tags["mlflow.source.name"] and tags["mlflow.user"]
    assert tags.get("mlflow.source.git.commit") == commit
    assert tags.get("mlflow.source.git.dirty") == (None if commit is None else str(code != commit).lower())
    assert "compare/" in client.get_experiment(experiment_id).tags["mlflow.note.content"]


def test_every_split_is_a_data_set_with_schema_and_profile(workspace: Workspace, prepared: Path) -> None:
    shutil.copytree(prepared, workspace.prepared)
    meta, (_, watcher) = read_meta(workspace.prepared), engine.observers(standard.Params(), workspace)
    watcher.on_start(info_of(workspace))
    client, _, run_id = run_of(workspace)
    given = client.get_run(run_id).inputs.dataset_inputs
    uses = {each.tags[0].value: each.dataset for each in given}
    assert uses.keys() == {"training", "validation", "testing"}
    assert len({each.digest for each in uses.values()}) == 3  # train and val are in one file
    for name, use in mlflow_datasets.CONTEXTS.items():
        data = uses[use]
        assert data.name == f"digits-{name}" and data.source_type == "local"
        schema = json.loads(data.schema or "")["mlflow_tensorspec"]
        [features], [targets] = json.loads(schema["features"]), json.loads(schema["targets"])
        assert features["tensor-spec"] == {"dtype": "float32", "shape": [-1, *meta.shape]}
        assert targets["tensor-spec"] == {"dtype": "int64", "shape": [-1]}
        profile = json.loads(data.profile or "")
        assert profile["num_rows"] == meta.samples[name] and profile["classes"] == meta.classes == 10
        source = mlflow.data.get_source(data)
        assert (workspace.root / source.to_dict()["uri"]).is_file()


def test_digests_are_those_of_the_data_and_nothing_prepared_is_no_data_set(
    workspace: Workspace, prepared: Path
) -> None:
    assert mlflow_datasets.described(workspace) == ()
    shutil.copytree(prepared, workspace.prepared)
    first = mlflow_datasets.described(workspace)
    elsewhere = Workspace(workspace.root / "elsewhere")
    shutil.copytree(prepared, elsewhere.prepared)
    assert mlflow_datasets.described(elsewhere) == first
    assert not any(str(workspace.root) in str(each) for each in first)
