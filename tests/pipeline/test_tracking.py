"""Whatever happens to MLflow or to us, in the end it has everything once, and training never depends on it."""

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from simic.pipeline import stages, tracking
from simic.pipeline.paths import Workspace
from simic.pipeline.simic_policy import ServedPolicy
from simic.telemetry import recorder, starts
from simic.telemetry.columns import Columns
from simic.telemetry.naming import run_name
from simic.telemetry.rows import UpdateRow
from simic.training.observers import RunInfo
from tests.helpers import ROOT, some
from tests.pipeline.small_suite import tree

NAME = run_name("0123456789abcdef")
MODEL = "simic-tables"
GONE = "http://127.0.0.1:1"  # nobody listens there
CODE = "c0ffee" * 6 + "abcd"
TAGS = {"simic.code": f"{CODE}-dirty", tracking.DATA_TAG: "d" * 64}


@pytest.fixture
def tracked(project: Workspace, initialised: bytes) -> Workspace:
    """A finished run beside an empty store."""
    (project.root / "mlflow.db").write_bytes(initialised)
    project.model_card.write_text("# A controller" + " with a long card" * 400)
    return project


def log_of(workspace: Workspace) -> list[tuple[UpdateRow, Columns]]:
    work = workspace.work(stages.fingerprint(tree(), workspace))
    files = recorder.read(work / recorder.FOLDER)
    return [(file.update, file.columns("train")) for file in files if file.update]


def log(workspace: Workspace, *, sound: bool = True) -> None:
    tracking.log_run(workspace, tree(), NAME, TAGS, "score 81", sound)


def train(workspace: Workspace, iterations: range, end: str | None = "finished") -> None:
    """Tell MLflow what the trainer tells of these iterations; with no end the process is killed."""
    logger = tracking.RunLogger(workspace, tree(), TAGS)
    logger.on_start(RunInfo(tree(), Path("0123456789abcdef"), "d" * 64, iterations.start, print))
    for row, episode in log_of(workspace)[iterations.start : iterations.stop]:
        logger.on_iteration(row, episode)
    if end is not None:
        logger.on_end(end)


def run_of(workspace: Workspace) -> tuple[MlflowClient, str]:
    store = tracking.connect(workspace)
    run_id = store.find_run(NAME)
    assert run_id is not None
    return store.client, run_id


def assert_complete(workspace: Workspace) -> None:
    """Every point, model, version and file is there once."""
    client, run_id = run_of(workspace)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED" and run.info.run_name == NAME
    for metric in run.data.metrics:
        steps = [point.step for point in client.get_metric_history(run_id, metric)]
        # In the order of their times, which are those of the training.
        expected = [0] if metric.startswith("compare/") else sorted(set(steps))
        assert sorted(steps) == expected, metric
    markers = client.get_metric_history(run_id, tracking.MARKER)
    assert sorted(point.step for point in markers) == [0, 1, 2]
    results = json.loads(workspace.metrics.read_bytes())
    assert {f"compare/{name}" for name in results} < run.data.metrics.keys()
    models = client.search_logged_models([run.info.experiment_id])
    [model] = [model for model in models if model.status == "READY"]
    points = {
        point.key: point.value for point in client.get_logged_model(model.model_id).metrics or []
    }
    assert points == {f"compare/{name}": value for name, value in results.items()}
    [version] = client.search_model_versions(f"name = '{MODEL}'")
    assert version.run_id == run_id
    assert client.get_model_version_by_alias(MODEL, "challenger").version == version.version
    assert version.description == workspace.model_card.read_text()[: tracking.LONGEST_NOTE]
    files = {file.path for file in client.list_artifacts(run_id)}
    assert {"report.html", "findings.json", "evaluation.json", "figures"} <= files


@contextmanager
def failing(call: str) -> Iterator[None]:
    """This call of MLflow's client fails."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("the connection was reset")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MlflowClient, call, refuse)
        yield


def test_a_run_that_is_logged_while_it_trains_killed_and_resumed_is_there_once(
    tracked: Workspace,
) -> None:
    train(tracked, range(2), end=None)
    train(tracked, range(1, 3))
    log(tracked)
    log(tracked)
    assert_complete(tracked)


def test_a_store_that_was_away_costs_one_warning_and_has_everything_later(
    tracked: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as away:
        away.setenv("MLFLOW_TRACKING_URI", GONE.replace("//", "//user:secret@"))
        train(tracked, range(3))
    [record] = caplog.records
    assert "logging to MLflow failed, the run continues without it" in record.getMessage()
    assert "secret" not in record.getMessage() and "\n" not in record.getMessage()
    tracking.warn(OSError("once more"))
    tracking.warn(OSError("once more"))
    assert len(caplog.records) == 2
    log(tracked)
    assert_complete(tracked)
    # The times are those of the training.
    client, run_id = run_of(tracked)
    begun = int(1000 * starts.read(tracked.telemetry / starts.RUN_FILE)[0].unix_seconds)
    run = client.get_run(run_id).info
    points = client.get_metric_history(run_id, tracking.MARKER)
    times = [run.start_time, *(point.timestamp for point in points), run.end_time]
    assert times[0] == begun and times == sorted(times) and len(set(times)) == 5
    assert times[-1] == int(1000 * (tracked.reports / "findings.json").stat().st_mtime)


@pytest.mark.parametrize(
    "call",
    some(
        [
            "log_batch",
            "log_model_artifacts",
            "finalize_logged_model",
            "create_model_version",
            "log_artifact",
        ],
        "finalize_logged_model",
    ),
)
def test_after_a_failure_of_any_call_the_next_command_logs_what_is_missing(
    tracked: Workspace, call: str
) -> None:
    with failing(call):
        train(tracked, range(1))
        log(tracked)
    log(tracked)
    assert_complete(tracked)


def test_the_published_tables_have_the_metrics_that_are_logged_in_training(
    tracked: Workspace,
) -> None:
    live = {
        row.iteration: finite(tracking.metrics_of(row, episode)) for row, episode in log_of(tracked)
    }
    published = tracking.published_metrics(tracked.telemetry)
    assert {iteration: finite(metrics) for iteration, metrics in published.items()} == live
    assert {"update/policy_loss", "episode/return"} < live[0].keys()


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


def test_a_run_has_few_metrics_and_params_and_says_where_it_comes_from(tracked: Workspace) -> None:
    train(tracked, range(3))
    client, run_id = run_of(tracked)
    run = client.get_run(run_id)
    assert len(run.data.metrics) <= 30
    assert len(run.data.params) <= 60
    assert run.data.params["train.ppo.gamma"] == str(tree().train.ppo.gamma)
    assert not [name for name in run.data.params if name.startswith("runtime")]
    assert (
        run.data.tags["mlflow.source.git.commit"] == CODE
        and run.data.tags["mlflow.source.git.dirty"] == "true"
    )
    assert tracking.address(tracked, NAME).endswith(
        f"/#/experiments/{run.info.experiment_id}/runs/{run_id}"
    )


def test_a_refuted_policy_is_no_challenger_and_a_champion_neither(tracked: Workspace) -> None:
    log(tracked, sound=False)
    client, _ = run_of(tracked)
    version = client.get_model_version(MODEL, "1")
    assert version.aliases == []
    tracking.give_alias(client, version, tracking.CHALLENGER)
    tracking.give_alias(client, version, tracking.CHAMPION)
    champion = tracking.version_with(client, MODEL, tracking.CHAMPION)
    assert champion is not None and (champion.version, champion.aliases) == (
        version.version,
        ["champion"],
    )
    assert tracking.version_with(client, MODEL, tracking.CHALLENGER) is None


# Where simic cannot be imported: plays a step after the other with the policy of the registry.
REPLAY = """
import sys
sys.modules["simic"] = None
import mlflow
import numpy as np

policy = mlflow.pyfunc.load_model("models:/simic-tables@challenger")
step = policy.input_example
actions = []
for _ in range(3):
    outputs = policy.predict(step)
    assert list(outputs) == policy.metadata.get_output_schema().input_names()
    actions.append(outputs["actions"])
    step |= {name: outputs[name] for name in step.keys() & outputs.keys()}
np.save(sys.argv[1], np.stack(actions))
"""


def test_the_registered_policy_plays_without_simic_like_the_exported_program(
    tracked: Workspace, tmp_path: Path
) -> None:
    """The program decides like the policy: tests/agent/test_export.py."""
    log(tracked)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["MLFLOW_TRACKING_URI"] = tracking.store_uri(tracked)
    command = [sys.executable, "-c", REPLAY, str(tmp_path / "actions.npy")]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    program = ServedPolicy(tracked.models / "program")
    step = tracking._example(
        json.loads((tracked.models / "program" / "policy.json").read_bytes())["inputs"]
    )
    for actions in np.load(tmp_path / "actions.npy"):
        outputs = program.predict(step)
        assert (outputs["actions"] == actions).all()
        step |= {name: outputs[name] for name in step.keys() & outputs.keys()}


# --- the store ---


def test_a_kill_while_the_store_is_made_leaves_none_and_the_next_start_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    workspace = Workspace(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tracking, "_create_experiment", killed)
        with pytest.raises(KeyboardInterrupt):
            tracking.connect(workspace)
    assert not (tmp_path / "mlflow.db").exists()
    store = tracking.connect(workspace)
    assert (
        store.client.get_experiment(store.experiment_id).artifact_location
        == (tmp_path / "mlruns/simic").as_uri()
    )
    assert sorted(os.listdir(tmp_path)) == [".simic", "mlflow.db"]
    assert os.listdir(workspace.state) == []
    # What it holds is not for everybody to read.
    assert stat.S_IMODE((tmp_path / "mlflow.db").stat().st_mode) & 0o007 == 0


@pytest.mark.slow
def test_first_starts_of_several_processes_at_once_make_one_experiment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "simic.pipeline.tracking"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    children = [subprocess.Popen(command, cwd=tmp_path, env=environment) for _ in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    assert (
        len(tracking.connect(Workspace(tmp_path)).client.search_experiments()) == 2
    )  # and MLflow's default one


def test_a_store_that_cannot_be_written_is_named_at_once(workspace: Workspace) -> None:
    """A folder is in its place: even root cannot write to it."""
    (workspace.root / "mlflow.db").unlink()
    (workspace.root / "mlflow.db").mkdir()
    with pytest.raises(OSError, match=r"mlflow\.db: unable to open database file"):
        tracking.connect(workspace)


def test_a_deleted_experiment_is_named_with_the_command_that_restores_it(
    workspace: Workspace,
) -> None:
    client, experiment_id = tracking.connect(workspace)
    client.delete_experiment(experiment_id)
    with pytest.raises(tracking.Unusable, match="the experiment simic is deleted in") as refused:
        tracking.connect(workspace)
    command = f"mlflow experiments restore --experiment-id {experiment_id}"
    assert command in str(refused.value)
    client.restore_experiment(experiment_id)
    assert tracking.connect(workspace).experiment_id == experiment_id


def test_a_copied_project_names_the_command_by_which_it_goes_on(
    workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tracking.connect(workspace)
    copy = Workspace(
        Path(shutil.copytree(workspace.root, tmp_path_factory.mktemp("moved") / "project"))
    )
    with pytest.raises(OSError, match="the project was copied or moved") as refused:
        tracking.connect(copy)
    command = shlex.split(str(refused.value).partition("run in its folder: ")[2])
    subprocess.run([sys.executable, "-m", *command], cwd=copy.root, capture_output=True, check=True)
    store = tracking.connect(copy)
    assert store.client.get_experiment(store.experiment_id).artifact_location.startswith(
        copy.root.as_uri()
    )
    assert (
        len(store.client.search_experiments())
        == len(tracking.connect(workspace).client.search_experiments()) + 1
    )


def test_the_store_of_an_experiment_of_dvc_in_a_copy_is_the_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / ".dvc" / "tmp" / "exps" / "standalone" / "x"
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert tracking.project_of(Workspace(copy)).root == copy  # `dvc repro` sets it too
    monkeypatch.setenv("DVC_EXP_NAME", "brave-mole")
    assert tracking.project_of(Workspace(copy)).root == tmp_path
    assert tracking.project_of(Workspace(tmp_path / "project")).root == tmp_path / "project"
