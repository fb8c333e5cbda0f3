"""A controller from a finished run to a user without a project: published, shipped, chosen, grown with, compared."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from benchmarks import publish
from simic import durable
from simic.errors import SimicError
from simic.evaluation import controllers, result, rules
from simic.evaluation.controllers import Controller
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.training import worker_layout
from tests.conftest import Simic
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
    found = Controller.load(folder, torch.device("cpu"))
    assert found.published is not None and found.published.suite == folder.name


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
    for folder in {*controllers.PUBLISHED.glob("*/")} - {rules.PUBLISHED}:
        assert_usable(folder)


def test_the_card_says_what_the_reports_say(shipped: Path, suite_run: Workspace) -> None:
    card, found, train = (
        (shipped / "CARD.md").read_text(),
        result.read(suite_run.evaluation),
        tree().train,
    )
    for standings in found.standings.values():
        score = standings.policies["learned"].score
        assert (
            f"| this controller | {score.estimate:.1f} [{score.low:.1f}, {score.high:.1f}] |"
            in card
        )
        for name in ("best common schedule", "oracle per task", "blind", "static"):
            assert f"{standings.policies[name].score.estimate:.1f} [" in card
    said = (
        f"rng_seed 3: {train.iterations} iterations of {train.envs} hosts; kept is",
        f"Cost: {found.controller_trainings} host trainings", f"kept is iteration {found.checkpoint_iteration}.",
        "Host family tables with 1 slot; trained on preset baseline alone",
    )  # fmt: skip
    for words in said:
        assert words in card, words


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


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is no project, with a user's table."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    x, y = load_digits(return_X_y=True)
    np.savez(folder / "mine.npz", x=x[:400].astype("f4"), y=y[:400])
    monkeypatch.chdir(folder)
    # No other process: it would take longer to start than to train.
    monkeypatch.setattr(worker_layout, "cores", lambda: 1)
    return folder


def test_grow_needs_no_project(elsewhere: Path, simic: Simic) -> None:
    code, said, _ = simic("grow", "mine.npz", "--n", 2, "--epochs", 4, "--out", "alone")
    assert code == 0 and "\npolicy   the published controller of suite tables, trained for " in said
    assert (
        "By the published controller of suite tables"
        in (elsewhere / "alone" / "README.md").read_text()
    )
