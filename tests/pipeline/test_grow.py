"""`simic grow`: on own data."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine

from simic import durable, params
from simic.errors import SimicError
from simic.evaluation import controllers
from simic.evaluation import grow_networks as growing
from simic.evaluation.floors import GROWN
from simic.pipeline.grow import Growth, _usual_host, grow, growth
from simic.pipeline.paths import Workspace
from tests.helpers import ROOT

SMALL = [
    "train.episode_steps=14",
    "train.batches_per_epoch=4",
    "train.batch_size=32",
    "runtime.threads=1",
]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    x, y = load_digits(return_X_y=True)
    path = tmp_path / "mine.npz"
    np.savez(path, x=x[:600].reshape(-1, 8, 8).astype("f4"), y=y[:600])
    return path


def tree(*overrides: str) -> params.Params:
    return params.load(ROOT / "params.yaml", [*SMALL, *overrides])


def asked(images: Path, **changes: object) -> Growth:
    settings = {
        "data": str(images),
        "out": images.parent / "grown",
        "policy": "patient",
        "hosts": 2,
    }
    return Growth(**(settings | changes))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host": "vit/tiny"}, "host 'vit/tiny': must be FAMILY/PRESET"),
        ({"policy": "nobody"}, "nobody"),
        ({"data": None, "task": "sudoku"}, "--task sudoku: .*digits, mnist"),
        ({"data": None, "task": "suite"}, "--task suite: grow takes one data set"),
        ({"data": None, "task": "text"}, "--task text: source is"),
        ({"out": Path()}, "already exists"),
    ],
)
def test_what_grow_cannot_do_is_one_line(
    images: Path, change: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "PUBLISHED", images.parent / "nothing")
    with pytest.raises(SimicError, match=words) as caught:
        grow(tree(), Workspace(images.parent), asked(images, **change))
    assert "\n" not in str(caught.value)


def test_two_do_not_grow_into_one_folder(images: Path) -> None:
    """The second would delete what the first has half written."""
    request = asked(images)
    refusal = f"in use by process {os.getpid()} on .*, which grows .*grown; wait"
    with (
        durable.locked(images.parent / ".grown.lock", "grows"),
        pytest.raises(durable.Held, match=refusal),
    ):
        grow(tree(), Workspace(images.parent), request)
    assert not request.out.exists()


def test_as_many_decisions_as_are_asked_for_else_the_middle_of_what_training_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On vectors of a width of the user's own, in so few rows that batches have to be smaller."""
    monkeypatch.setattr(growing, "compare_with_floors", lambda *_: None)
    x, y = load_wine(return_X_y=True)
    np.savez(tmp_path / "wine.npz", x=x.astype("f4"), y=y)
    ranged = tree("train.episode_steps=[3, 6]", "train.batch_size=48", "train.batches_per_epoch=8")

    request = Growth(str(tmp_path / "wine.npz"), tmp_path / "grown", policy="patient", hosts=2)
    with growth(ranged, Workspace(tmp_path), request) as (setup, _):
        assert setup.params.train.episode_steps == 5  # (3 + 6 + 1) // 2
    grow(ranged, Workspace(tmp_path), replace(request, epochs=9))  # beyond what training has, too
    history = json.loads((request.out / "history.json").read_text())
    assert sum("step" in entry for entry in history) == 9
    assert '"tables"' in (request.out / "structure.json").read_text()


@pytest.mark.parametrize(
    ("host", "shape", "expected"),
    [
        (None, (1, 1, 5), ("tables", "baseline")),
        (None, (1, 1, 1), ("mlp", "baseline")),
        (None, (1, 16, 16), ("cnn", "baseline")),
        (None, (64,), ("transformer", "baseline")),
        # One that is too weak alone, to show what growing is worth, is nobody's.
        ("{family: cnn, preset: impaired}", (1, 16, 16), ("cnn", "baseline")),
        ("{family: cnn, preset: impaired}", (1, 1, 784), ("mlp", "baseline")),
    ],
)
def test_what_grows_without_being_asked_suits_the_samples(tmp_path, host, shape, expected):
    """Though a host for tables, which params.yaml has, would take pixels as columns."""
    workspace, shipped = Workspace(tmp_path), params.load(ROOT / "params.yaml")
    shutil.copy(ROOT / "params.yaml", workspace.params)
    assert shipped.train.host.family == "tables"
    asked_for = (
        shipped if host is None else params.load(ROOT / "params.yaml", [f"train.host={host}"])
    )
    host_params = _usual_host(asked_for, workspace, SimpleNamespace(shape=shape, classes=3))
    assert (host_params.family, host_params.preset) == expected


def test_text_grows_beside_floors_that_count_right_tokens(tmp_path: Path) -> None:
    """A sequence has a right answer for each token: the floors and the grown network score shares of them."""
    book = tmp_path / "book.txt"  # outside the project's data folder
    book.write_text("abcdefgh" * 60)
    small = tree("prepare.context=4", "train.batches_per_epoch=1", "train.batch_size=8")
    request = Growth(
        data=str(book),
        out=tmp_path / "grown",
        task="text",
        policy="static",
        host="transformer/impaired",
        hosts=2,
        epochs=2,
    )
    exported = grow(small, Workspace(tmp_path), request)
    floors = exported.account.floors
    assert floors is not None
    rows = {row.name: row for row in floors.rows}
    assert list(rows) == ["majority class", "host alone", "plain transformer network", GROWN]
    assert rows[GROWN].accuracy_pct == pytest.approx(exported.test_accuracy_pct, abs=1e-3)
    assert rows[GROWN].accuracy_pct == rows["host alone"].accuracy_pct
    # Sequences have no class to balance; one letter in eight is the commonest.
    assert rows["majority class"].balanced_pct is None
    assert rows["majority class"].accuracy_pct == pytest.approx(12.5, abs=0.5)
