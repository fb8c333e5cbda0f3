"""A store keeps absolute paths: a project that was copied or moved says so, trains on, and is told all of it later."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simic.errors import SimicError
from simic.pipeline import mlflow_observer, mlflow_store
from simic.pipeline.mlflow_registry import Registry
from simic.pipeline.paths import Workspace
from simic.telemetry.rows import FindingRow
from tests.pipeline.test_mlflow_debts import OTHER, begun, owed
from tests.pipeline.test_mlflow_store import FINGERPRINT, MODELS, info_of, publish_files, run_of, steps, tracker, train


def files_of(workspace: Workspace) -> set[Path]:
    return {path for path in workspace.root.rglob("*") if path.is_file()}


def whole(workspace: Workspace) -> None:
    """A run with its models."""
    watcher = tracker(workspace)
    watcher.on_start(info_of(workspace))
    train(watcher, workspace, range(2))
    watcher.on_end("finished")
    publish_files(workspace)
    watcher.publish()


def moved(workspace: Workspace, target: Path) -> Workspace:
    return Workspace(Path(shutil.copytree(workspace.root, target)))


def test_a_copied_project_says_what_to_do_and_does_it_once_that_was_done(
    workspace: Workspace, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    whole(workspace)
    copy, before = moved(workspace, tmp_path_factory.mktemp("moved") / "project"), files_of(workspace)
    findings: list[FindingRow] = []
    watcher = begun(copy, findings, OTHER)
    train(watcher, copy, range(3), OTHER)
    watcher.on_end("finished")
    watcher.publish()
    assert [finding.check for finding in findings] == ["tracking_gone"]
    [said] = [record.getMessage() for record in caplog.records if "continues without it" in record.getMessage()]
    assert "\n" not in said and f"{copy.root}/mlflow.db keeps its files in {workspace.root.as_uri()}" in said
    assert len(owed(copy)) == 1

    command = shlex.split(said.partition("run in its folder: ")[2])
    assert command[0] == "mlflow"
    done = subprocess.run([sys.executable, "-m", *command], cwd=copy.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    mlflow_observer.settle(copy)
    assert owed(copy) == [] and steps(copy, "update/loss", OTHER) == [0, 1, 2]
    client, experiment_id, run_id = run_of(copy, OTHER)
    found = client.search_logged_models([experiment_id])
    assert {model.name for model in found} == MODELS
    assert all(model.artifact_location.startswith(copy.root.as_uri()) for model in found)
    [earlier] = [each for each in client.search_experiments() if each.name == "simic-2"]
    assert client.search_runs([earlier.experiment_id])[0].data.tags["simic.fingerprint"] == FINGERPRINT
    assert files_of(workspace) == before
    assert run_id in {version.run_id for version in client.search_model_versions("name = 'simic-policy'")}


def test_a_champion_whose_files_stayed_behind_is_one_line(workspace: Workspace, tmp_path: Path) -> None:
    whole(workspace)
    client, _ = mlflow_store.connect(workspace)
    client.set_registered_model_alias("simic-policy", "champion", "1")
    registry = Registry.open(workspace)
    champion = registry.holder("champion")
    assert champion is not None
    assert (registry.fetch(champion, tmp_path / "there") / "MLmodel").is_file()
    shutil.rmtree(workspace.root / "mlruns")
    with pytest.raises(
        SimicError, match=r"version 1: its files are not in file://.* or take its alias away in MLflow$"
    ):
        registry.fetch(champion, tmp_path / "gone")


def test_a_server_keeps_its_files_wherever_it_likes(
    workspace: Workspace, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the way to the project may have many names."""
    whole(workspace)
    link = tmp_path_factory.mktemp("link") / "project"
    link.symlink_to(workspace.root)
    assert mlflow_store.connect(Workspace(link))[1] == mlflow_store.connect(workspace)[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store.store_uri(workspace))
    mlflow_store.connect(Workspace(tmp_path_factory.mktemp("other")))
