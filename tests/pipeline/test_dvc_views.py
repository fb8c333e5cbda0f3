"""What DVC shows of runs, by its own commands: numbers and curves of several; experiments in copies of the project."""

import sys
from pathlib import Path

import pytest

from simic.pipeline import mlflow_store
from simic.pipeline.paths import Workspace
from tests.pipeline.dvc_project import Project


@pytest.mark.usefixtures("in_git")
def test_an_experiment_in_a_copy_of_the_project_keeps_its_run(tmp_path: Path) -> None:
    """DVC removes the copy, and would remove MLflow's store in it."""
    project = Project(tmp_path, f"{sys.executable} train.py mlflow")
    project.dvc("exp", "run", "--temp", "-q", "-n", "apart", "-S", "rng_seed=3")
    client, experiment = mlflow_store.connect(Workspace(tmp_path))
    [run] = client.search_runs([experiment])
    assert run.info.run_name == "seed 3"
    assert run.info.artifact_uri.startswith((tmp_path / "mlruns").as_uri())
    assert (tmp_path / "params.yaml").read_text() == "rng_seed: 1\n"


def test_the_store_is_the_projects_in_such_a_copy_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, elsewhere = tmp_path / ".dvc" / "tmp" / "exps" / "standalone" / "x", tmp_path / "other"
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert mlflow_store.keeper(Workspace(copy)).root == copy  # `dvc repro` sets it too
    monkeypatch.setenv("DVC_EXP_NAME", "brave-mole")
    assert mlflow_store.keeper(Workspace(copy)).root == tmp_path
    assert mlflow_store.keeper(Workspace(tmp_path)).root == tmp_path
    assert mlflow_store.keeper(Workspace(elsewhere)).root == elsewhere
