"""From a person's file to a network in a folder that runs without simic, by the command line."""

import io
import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_iris, load_wine

from simic.errors import as_markdown
from simic.growth.grown_network import load_grown
from simic.training import worker_layout
from tests.conftest import Simic


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        worker_layout, "cores", lambda: 1
    )  # processes take longer to start than these train
    return tmp_path


def predicted(output: str) -> list[str]:
    """The classes that predict.py printed."""
    head, *lines = output.splitlines()
    assert head.startswith("class,probability")
    return [line.split(",")[0] for line in lines]


def test_a_table_with_strings_and_missing_values(simic: Simic) -> None:
    wine = load_wine(as_frame=True)
    shade = "<i>\x1b[31mshade"  # which a terminal or a page would obey
    frame = wine.data.assign(
        **{shade: pd.qcut(wine.data["hue"], 3, labels=["low", "middle", "high"])}
    )
    frame.loc[::6, shade] = np.nan
    frame.loc[::4, "proline"] = np.nan
    frame["wine"] = wine.target.map({0: "Barolo", 1: "Grignolino", 2: "Barbera"})
    frame.to_csv("wine.csv", index=False)
    code, output, _ = simic("grow", "wine.csv", "--target", "wine", "--n", "2", "--epochs", "8")
    assert code == 0 and output.startswith("data     wine.csv: 178 rows, 14 columns, 18 features\n")
    floors = (
        "majority class",
        "logistic regression",
        "gradient boosting",
        "host alone",
        "all modules from",
    )
    for words in (*floors, "Use ", "\npolicy   the published controller of suite tables, trained"):
        assert words in output, words
    first = json.loads(Path("grown/history.json").read_text())[0]
    card = Path("grown/README.md").read_text()
    assert first["data"][0].startswith("wine.csv: 178 rows") and all(
        f"- {as_markdown(note)}" in card for note in first["data"]
    )
    assert "<i>" not in card and "\x1b" not in card + output
    # In a process that cannot import simic.
    command = [sys.executable, "-I", "grown/predict.py", "wine.csv", "--probabilities"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    given = pd.read_csv(io.StringIO(result.stdout))
    assert [*given] == ["class", "probability", "p(Barbera)", "p(Barolo)", "p(Grignolino)"]
    assert np.allclose(given.iloc[:, 2:].max(axis=1), given["probability"])
    answers, network = predicted(result.stdout), load_grown("grown")
    assert answers == network.predict(pd.read_csv("wine.csv")).tolist()
    assert np.mean(np.array(answers) == frame["wine"]) > 0.9
    # So with the model of the sentence, which is a plainer one here.
    name = output.split("\nUse ")[1].split(":")[0]
    [line] = [line for line in output.splitlines() if "grown/recommended/predict.py DATA" in line]
    assert line.startswith("use it   python ") and line.endswith(f"({name})")
    command[2] = "grown/recommended/predict.py"
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    answers = predicted(result.stdout)
    assert result.returncode == 0 and np.mean(np.array(answers) == frame["wine"]) > 0.9
    assert "already exists" in simic.refuses("grow", "wine.csv", "--target", "wine")


def test_images_in_folders(
    folder: Path, simic: Simic, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    x, y = load_digits(return_X_y=True)
    for k in np.flatnonzero(y < 3)[:90]:
        path = folder / "digits" / ["none", "one", "two"][y[k]] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((x[k] * 15).astype(np.uint8).reshape(8, 8)).save(path)
    code, output, _ = simic("grow", "digits", "--n", "1", "--epochs", "2")
    assert (
        code == 0
        and "read as 1 channel(s) of 8 × 8 pixels" in output
        and "plain cnn network" in output
    )
    structure = json.loads(Path("grown/structure.json").read_text())
    assert (structure["host"]["family"], structure["host"]["preset"]) == ("cnn", "baseline")
    with torch.no_grad():
        assert load_grown("grown")(torch.zeros(1, 8, 8)).shape == (1, 3)
    monkeypatch.setitem(sys.modules, "simic", None)  # cannot be imported
    monkeypatch.setattr(
        sys, "argv", ["predict.py", str(next((folder / "digits" / "one").iterdir()))]
    )
    runpy.run_path("grown/predict.py", run_name="__main__")
    assert predicted(capfd.readouterr().out) in (["none"], ["one"], ["two"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("nowhere.csv",),
            "nowhere.csv: no such file; must be one of those that simic grow --help names",
        ),
        (("iris.csv", "--target", "species", "--layout", "nchw"), "--layout nchw: is for images"),
        (("few.csv", "--target", "species"), "few.csv: class 2 has 2 different samples"),
        (("--task", "digits", "--target", "y"), "--target y: is for a file or folder of your own"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    simic: Simic, arguments: tuple[str, ...], words: str
) -> None:
    iris = load_iris(as_frame=True)
    frame = iris.data.assign(species=iris.target)
    frame.to_csv("iris.csv", index=False)
    frame[:102].to_csv("few.csv", index=False)
    assert words in simic.refuses("grow", *arguments)
