"""`simic grow`: on own data."""

import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits, load_wine

from simic import durable, params
from simic.data.batches import load_held_out
from simic.data.own import predict
from simic.errors import SimicError
from simic.evaluation import controllers, floors
from simic.evaluation import grow_networks as growing
from simic.evaluation.floors import GROWN
from simic.growth import load_grown
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
    monkeypatch.setattr(growing, "compare_with_floors", lambda *_: (None, None))
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
    compared = exported.account.floors
    assert compared is not None
    rows = {row.name: row for row in compared.rows}
    assert list(rows) == ["majority class", "host alone", "plain transformer network", GROWN]
    assert rows[GROWN].accuracy_pct == pytest.approx(exported.test_accuracy_pct, abs=1e-3)
    assert rows[GROWN].accuracy_pct == rows["host alone"].accuracy_pct
    # Sequences have no class to balance; one letter in eight is the commonest.
    assert rows["majority class"].balanced_pct is None
    assert rows["majority class"].accuracy_pct == pytest.approx(12.5, abs=0.5)


@pytest.mark.parametrize("place", range(1, 5), ids=["line", "boosting", "host", "network"])
def test_the_model_of_the_sentence_is_saved_and_answers_as_it_was_scored(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read by the same predict.py from the same file: test rows are right where the scores of the sentence say so."""
    draws = np.random.default_rng(4)
    frame = pd.DataFrame(draws.normal(size=(90, 2)), columns=["a", "b"])
    frame["shade"] = draws.choice(np.array(["red", "blue", "green", None]), 90)
    frame["kind"] = np.where(frame["a"] + (frame["shade"] == "red") > 0, "yes", "no")
    frame.to_csv(tmp_path / "mine.csv", index=False)
    monkeypatch.setattr(floors, "_chosen", lambda contenders, weights: place)
    request = Growth(
        str(tmp_path / "mine.csv"),
        tmp_path / "grown",
        policy="static",
        hosts=2,
        epochs=2,
        target="kind",
    )
    exported = grow(tree(), Workspace(tmp_path), request)
    chosen = exported.account.recommended
    assert chosen is not None and chosen.model is not None
    folder = request.out / "recommended"
    written = {file.name for file in folder.iterdir()}
    assert {"predict.py", "network.pt2", "structure.json", "README.md"} <= written
    assert (folder / "predict.py").read_bytes() == (request.out / "predict.py").read_bytes()
    card = (folder / "README.md").read_text()
    assert exported.account.floors is not None and exported.account.floors.advice in card
    assert f"{100 * chosen.correct.mean():.1f} %" in exported.account.floors.advice

    # The test rows are those of the split.
    with growth(tree(), Workspace(tmp_path), request) as (setup, _):
        assert setup.data is not None
        rows = setup.data.raw["test"]
        y = load_held_out(setup.prepared, setup.device).test.y.numpy()
        names = setup.data.inputs.columns
    table = pd.DataFrame(rows, columns=["a", "b", "shade"])
    table["shade"] = table["shade"].map(dict(enumerate(names[2].levels or ())))
    table.to_csv(tmp_path / "test.csv", index=False)
    capsys.readouterr()
    predict.main(folder, ["--probabilities", str(tmp_path / "test.csv")])
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    classes = np.array(setup.data.inputs.classes)
    assert np.array_equal(printed["class"] == classes[y], chosen.correct == 1)
    assert np.allclose(printed[["p(no)", "p(yes)"]].sum(axis=1), 1, atol=2e-4)
    # From Python too.
    assert np.array_equal(chosen.model.predict(table), printed["class"])
    if place <= 2:
        with pytest.raises(SimicError, match=f"{chosen.name}, no network: python predict.py DATA"):
            load_grown(folder)
    else:
        assert np.array_equal(load_grown(folder).predict(table), printed["class"])


def test_no_other_model_is_saved_where_the_grown_network_or_nothing_is_recommended(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, place in (("nothing", 0), ("grown", -1)):
        monkeypatch.setattr(floors, "_chosen", lambda contenders, weights, place=place: place)
        exported = grow(
            tree(), Workspace(images.parent), asked(images, out=images.parent / name, epochs=1)
        )
        assert exported.account.recommended is None
        assert not (exported.path / "recommended").exists()


@pytest.mark.parametrize("features", [floors.MOST_TOGETHER, floors.MOST_TOGETHER + 1])
def test_all_modules_are_left_out_where_pairs_are_too_many_and_that_is_said_below_the_table(
    features: int, tmp_path: Path
) -> None:
    draws = np.random.default_rng(6)
    np.savez(tmp_path / "wide.npz", x=draws.normal(size=(60, features)), y=np.arange(60) % 2)
    request = Growth(
        str(tmp_path / "wide.npz"),
        tmp_path / "grown",
        policy="static",
        host="tables/baseline",
        hosts=1,
        epochs=1,
    )
    with (
        growth(tree("train.batches_per_epoch=1"), Workspace(tmp_path), request) as (setup, policy),
        growing.grown_hosts(setup, policy, 1) as grown,
    ):
        compared, _ = growing.compare_with_floors(setup, grown, lambda what, done, total: None)
    is_there = floors.ALL_MODULES in {row.name for row in compared.rows}
    line = f"Left out: {floors.ALL_MODULES}, since {features} features have too many pairs."
    assert is_there == (features <= floors.MOST_TOGETHER)
    assert compared.table().endswith(line) != is_there
