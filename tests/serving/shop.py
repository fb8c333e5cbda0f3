"""A network as `simic grow` writes one, without growing: logistic regression on a table of a shop; its requests."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simic.data.own import predict
from simic.data.own.contract import REFERENCE, as_parquet
from simic.data.own.own_data import own_data
from simic.data.own.readers import read
from simic.evaluation.fitted_models import FittedModel, LinearScores
from simic.evaluation.static_baselines import logistic_models
from simic.growth import grown_network
from simic.growth.grown_network import FittedStructure
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from simic.serving.champions import OpenNetwork
from simic.serving.networks import NetworkModel
from tests.helpers import made_once
from tests.pipeline.conftest import initialised  # noqa: F401

LABEL = "buys"
NAME = "simic-shop"


def table(rows: int, seed: int, shift: float = 0.0, signal: float = 1.0) -> pd.DataFrame:
    """Age with gaps, a city and a time that says nothing; age and city tell the class, mostly."""
    draws = np.random.default_rng(seed)
    age = draws.normal(40 + 10 * shift, 10, rows)
    city = draws.choice(["Bern", "Rom", "Wien"], rows, p=[0.5, 0.3, 0.2])
    logits = signal * ((age - 40) / 4 + 2 * (city == "Rom")) + draws.logistic(size=rows) / 3
    gap = draws.random(rows) < 0.1
    return pd.DataFrame(
        {
            "age": np.where(gap, np.nan, age),
            "city": city,
            "time": draws.integers(0, 1000, rows),
            LABEL: np.where(logits > 0, "yes", "no"),
        }
    )


def write_network(folder: Path, rows: pd.DataFrame) -> None:
    """Fit to a table, which stays beside the folder; write what a person would serve."""
    file = folder.with_suffix(".csv")
    # Nothing can be learned from which till it was.
    rows.assign(till=1).to_csv(file, index=False)
    data = own_data(read(file, LABEL), {"val": 0.2, "test": 0.2}, 1)
    x = data.bank.arrays["x_train"].flatten(1).numpy()
    [model] = logistic_models(x, data.bank.arrays["y_train"].numpy(), (1.0,), 100)
    structure = FittedStructure(
        model="logistic regression", input_shape=(1, 1, x.shape[1]), classes=2, inputs=data.inputs
    )
    fitted = FittedModel(structure, LinearScores(model), model.classes_, is_standardised=True)
    promise = {"model": structure.model, "accuracy": 0.9, "rows": 200}
    files = grown_network.contents(fitted, "# A card") | {
        "predict.py": Path(predict.__file__).read_text(),
        "promise.json": json.dumps(promise),
        "contract.json": data.contract.to_json(),
        REFERENCE: as_parquet(data.reference),
    }
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def note_requests(
    folder: Path, network: Path, rows: pd.DataFrame, number: int, model: str
) -> pd.DataFrame:
    """Write a file of the request log; return the labels of its requests."""
    answers = predict.SavedModel(network).predict(rows)
    seconds = pd.to_timedelta(1000 * number + np.arange(len(rows)), unit="s")
    log = rows.drop(columns=LABEL).rename(columns={"time": "time_"})
    log = log.assign(
        time=pd.Timestamp("2026-01-01", tz="UTC") + seconds,
        request=[f"{number}-{place}" for place in range(len(rows))],
        model=model,
        predicted=answers["class"],
        probability=answers["probability"],
    )
    folder.mkdir(exist_ok=True, parents=True)
    log.to_parquet(folder / f"requests-{number:03d}-7.parquet")
    return pd.DataFrame({"request": log.request, LABEL: rows[LABEL]})


@pytest.fixture(scope="session")
def shared_network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that nobody changes."""

    def make(folder: Path) -> None:
        write_network(folder / "grown", table(1500, seed=0))

    return made_once(tmp_path_factory, "network", make) / "grown"


@pytest.fixture
def network(shared_network: Path) -> OpenNetwork:
    return OpenNetwork(shared_network, NetworkModel(shared_network, "grown"))


@pytest.fixture
def project(
    tmp_path: Path,
    initialised: bytes,  # noqa: F811
    shared_network: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Workspace:
    """A project with a store and a network, the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(initialised)
    shutil.copytree(shared_network, tmp_path / "grown")
    shutil.copy(shared_network.with_suffix(".csv"), tmp_path)
    subprocess.run(["dvc", "init", "-q", "--no-scm"], cwd=tmp_path, check=True)
    return Workspace(tmp_path)


def aliases(workspace: Workspace) -> dict[str, str]:
    """Which version of the shop's networks has which alias."""
    client, _ = tracking.connect(workspace)
    return {
        alias: str(version) for alias, version in client.get_registered_model(NAME).aliases.items()
    }
