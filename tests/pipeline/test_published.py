"""A controller from a finished run to a user without a project: published, shipped, chosen, grown with, compared."""

import shutil
from pathlib import Path

import pytest
import torch

from benchmarks import publish
from simic import durable
from simic.errors import SimicError
from simic.evaluation import controllers, result, rules
from simic.evaluation.controllers import Controller
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.pipeline.small_suite import tree

FILES = {"CARD.md", "policy.json", "weights.safetensors"}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(controllers, "PUBLISHED", tmp_path / "published")
    return tmp_path / "published"


@pytest.fixture
def shipped(suite_run: Workspace, shelf: Path) -> Path:
    publish.main([str(suite_run.root), "tables"])
    return shelf / "tables"


def assert_usable(folder: Path) -> None:
    """What grow and a reader of the folder rely on."""
    assert {path.name for path in folder.iterdir()} == FILES
    assert sum(path.stat().st_size for path in folder.iterdir()) <= publish.MOST_BYTES
    controller = Controller.load(folder, torch.device("cpu"))
    assert controller.published is not None and controller.published.suite == folder.name


def test_what_is_published_is_small_whole_and_the_same_bytes_again(
    shipped: Path, suite_run: Workspace
) -> None:
    assert_usable(shipped)
    before = content(shipped)
    publish.main([str(suite_run.root), "tables"])
    assert content(shipped) == before
    trained = content(suite_run.models / "policy")
    assert before["weights.safetensors"] == trained["weights.safetensors"]
    card = durable.checked(before["policy.json"])
    assert card.pop("published") == {"suite": "tables", "sample_shape": [1, 1, 12]}
    assert card == durable.checked(trained["policy.json"])


def test_every_controller_that_ships_is_usable() -> None:
    for folder in {*controllers.PUBLISHED.glob("*/")} - {
        rules.PUBLISHED,
        controllers.PUBLISHED / "headroom",
    }:
        assert_usable(folder)


def test_the_card_says_what_the_reports_say(shipped: Path, suite_run: Workspace) -> None:
    card = (shipped / "CARD.md").read_text()
    evaluation = result.read(suite_run.evaluation)
    names = {"learned": "| this controller |", "best common schedule": " |"}
    for standings in evaluation.standings.values():
        for name in ("learned", "best common schedule", "oracle per task", "blind", "static"):
            score = standings.policies[name].score
            row = f"{names.get(name, f'| {name} |')} {score.estimate:.1f} [{score.low:.1f}, {score.high:.1f}] |"
            assert row in card, row
    assert f"kept is iteration {evaluation.checkpoint_iteration}." in card
    assert f"Cost: {evaluation.controller_trainings} host trainings" in card


def test_parts_of_different_runs_are_not_published(
    suite_run: Workspace, tmp_path: Path, shelf: Path
) -> None:
    folder = Path(shutil.copytree(suite_run.root, tmp_path / "copy"))
    stages.prepare(tree("rng_seed=2"), Workspace(folder))
    with pytest.raises(SimicError, match="its evaluation is of other data"):
        publish.main([str(folder), "tables"])
    policy = folder / "models" / "policy" / "policy.json"
    policy.write_bytes(
        durable.with_checksum(durable.checked(policy.read_bytes()) | {"iteration": 9})
    )
    with pytest.raises(SimicError, match="models/policy is the one after 9"):
        publish.main([str(folder), "tables"])
    with pytest.raises(SimicError, match=r"data of suite tables.*, not of suite others"):
        publish.main([str(suite_run.root), "others"])
    assert not shelf.exists()
