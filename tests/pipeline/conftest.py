"""What several tests of the pipeline start from."""

import shutil
from pathlib import Path

import pytest
import yaml

from simic.pipeline import stages, tracking
from simic.pipeline.paths import Workspace
from tests.helpers import made_once
from tests.pipeline.small_suite import tree
from tests.training.conftest import finished, prepared  # noqa: F401


@pytest.fixture(scope="session")
def suite_run(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """All five stages of a tiny suite; read only."""

    def make(folder: Path) -> None:
        for stage in stages.STAGES.values():
            stage(tree(), Workspace(folder))

    return Workspace(made_once(tmp_path_factory, "suite", make))


@pytest.fixture
def project(suite_run: Workspace, tmp_path: Path) -> Workspace:
    """A finished run of that suite, with its params; it may be spoilt."""
    workspace = Workspace(Path(shutil.copytree(suite_run.root, tmp_path / "project")))
    workspace.params.write_text(yaml.safe_dump(tree().model_dump(mode="json"), sort_keys=False))
    return workspace


@pytest.fixture(scope="session")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with its tables, made once: that takes seconds. Its experiment is renamed: its folder is another."""

    def make(folder: Path) -> None:
        client, experiment_id = tracking.connect(Workspace(folder))
        client.rename_experiment(experiment_id, "template")

    return (made_once(tmp_path_factory, "store", make) / "mlflow.db").read_bytes()


@pytest.fixture
def workspace(tmp_path: Path, initialised: bytes) -> Workspace:
    """A workspace whose store has tables."""
    (tmp_path / "mlflow.db").write_bytes(initialised)
    return Workspace(tmp_path)
