"""`simic grow`: on own data."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_wine

from simic import durable, params
from simic.errors import SimicError
from simic.evaluation import controllers
from simic.evaluation import grow_networks as growing
from simic.evaluation.floors import GROWN
from simic.growth.grown_network import load_grown
from simic.pipeline.grow import Growth, _usual_host, grow, growth
from simic.pipeline.paths import Workspace
from tests.helpers import ROOT

ALONE = """
import sys, torch
network = torch.export.load(sys.argv[1]).module()
torch.save(network(torch.load(sys.argv[2])), sys.argv[3])
assert "simic" not in sys.modules
"""
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


def test_grown_network_runs_as_a_plain_module_and_without_simic(images: Path) -> None:
    found = grow(tree(), Workspace(images.parent), asked(images, host="cnn/baseline"))
    assert found.params > found.host_params
    card, floors = (found.path / "README.md").read_text(), found.account.floors
    assert floors is not None and floors.table() in card and floors.advice in card
    assert floors.rows[-1].accuracy_pct == pytest.approx(found.test_accuracy_pct, abs=1e-3)
    # What torch computes without simic is what simic computes.
    x, y = torch.linspace(0, 16, 5 * 64).view(5, 8, 8), images.with_name("y.pt")
    torch.save(x, images.with_name("x.pt"))
    paths = map(str, (found.path / "network.pt2", images.with_name("x.pt"), y))
    subprocess.run([sys.executable, "-I", "-c", ALONE, *paths], check=True, cwd=images.parent)
    logits, mine = torch.load(y), load_grown(found.path)(x)
    torch.testing.assert_close(logits, mine, rtol=0, atol=1e-6)
    assert torch.equal(logits.argmax(1), mine.argmax(1))


def test_the_host_alone_is_the_same_host_without_seeds(images: Path) -> None:
    alone = grow(
        tree(), Workspace(images.parent), asked(images, host="cnn/baseline", policy="static")
    )
    assert alone.params == alone.host_params and alone.account.floors is not None
    rows = {row.name: row for row in alone.account.floors.rows}
    bare, grown = rows["host alone"], rows["grown network"]
    assert (bare.accuracy_pct, bare.mean_pct, bare.size) == (
        grown.accuracy_pct,
        grown.mean_pct,
        grown.size,
    )


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
    said = f"in use by process {os.getpid()} on .*, which grows .*grown; wait"
    with (
        durable.locked(images.parent / ".grown.lock", "grows"),
        pytest.raises(durable.Held, match=said),
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

    wanted = Growth(str(tmp_path / "wine.npz"), tmp_path / "grown", policy="patient", hosts=2)
    with growth(ranged, Workspace(tmp_path), wanted) as (setup, _):
        assert setup.params.train.episode_steps == 5  # (3 + 6 + 1) // 2
    grow(ranged, Workspace(tmp_path), replace(wanted, epochs=9))  # beyond what training has, too
    history = json.loads((wanted.out / "history.json").read_text())
    assert sum("step" in entry for entry in history) == 9
    assert '"tables"' in (wanted.out / "structure.json").read_text()


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
    found = _usual_host(asked_for, workspace, SimpleNamespace(shape=shape, classes=3))
    assert (found.family, found.preset) == expected


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
