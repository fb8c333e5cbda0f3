"""What is shown and decided of a run on a Gymnasium environment follows from its evaluation."""

import pytest

from flows.artifacts import gym_rows
from simic.evaluation import gym_evaluation
from simic.pipeline.paths import Workspace
from simic.pipeline.tracking import registered_name
from tests.gym_run import TREE, gym_run


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return gym_run(tmp_path_factory)


def test_prefect_has_a_row_for_every_policy(workspace: Workspace) -> None:
    evaluation = gym_evaluation.read(workspace.evaluation)
    rows = gym_rows(evaluation)
    assert [row["policy"] for row in rows] == ["learned", "random"]
    for name, row in zip(evaluation.policies, rows, strict=True):
        returns = evaluation.policies[name].per_seed.returns
        assert row["return"] == pytest.approx(sum(returns) / len(returns), abs=0.005)


def test_every_environment_has_a_registered_model_of_its_own() -> None:
    assert registered_name(TREE.prepare.dataset) == "simic-CartPole-v1"
    assert registered_name("their.package:Maze-v0") == "simic-their.package-Maze-v0"
