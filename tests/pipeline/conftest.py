"""What several tests of the pipeline start from."""

import pytest

from simic.pipeline import mlflow_store, stages
from simic.pipeline.paths import Workspace
from tests.pipeline.small_suite import tree
from tests.training.conftest import finished, prepared  # noqa: F401


@pytest.fixture(scope="session")
def suite_run(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """All five stages of a tiny suite; read only."""
    workspace = Workspace(tmp_path_factory.mktemp("suite"))
    for stage in stages.STAGES.values():
        stage(tree(), workspace)
    return workspace


@pytest.fixture(scope="session")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with its tables, made once: that takes seconds. Its experiment is renamed: its folder is another."""
    workspace = Workspace(tmp_path_factory.mktemp("store"))
    client, experiment_id = mlflow_store.connect(workspace)
    client.rename_experiment(experiment_id, "template")
    return (workspace.root / "mlflow.db").read_bytes()
