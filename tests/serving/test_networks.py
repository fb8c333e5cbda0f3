"""Five ways to ask one network give one answer; what is asked is checked, counted and compared with training."""

import io
import json
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

from simic.data.own import predict
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from simic.serving import promotion
from simic.serving.drift import psi
from tests.pipeline.conftest import initialised, workspace  # noqa: F401
from tests.serving.conftest import STREAM, arrow, fitted, rows_of, running, table

NEW = table(50, 9)


def by_onnx(folder: Path) -> np.ndarray:
    """Translate the program as its reader would, and run it."""
    exported = torch.export.load(folder / "network.pt2")
    rows = ({0: "batch"},)
    model = torch.onnx.export(exported, dynamo=True, dynamic_shapes=rows, verbose=False)
    session = onnxruntime.InferenceSession(model.model_proto.SerializeToString())
    columns = json.loads((folder / "structure.json").read_text())["inputs"]["columns"]
    [logits] = session.run(None, {session.get_inputs()[0].name: predict.codes(NEW, columns)})
    return torch.tensor(logits).softmax(1).numpy()


@pytest.mark.filterwarnings("ignore")  # of the translator and of MLflow about their own calls
def test_server_program_estimator_mlflow_and_onnx_give_the_same_probabilities(
    networks: list[Path],
    workspace: Workspace,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = networks[0]
    expected = fitted(1).predict_proba(NEW)
    answers = {"onnx": by_onnx(folder)}
    with running(folder) as server:
        for name, body, media in (
            ("rows", {"rows": rows_of(NEW)}, "application/json; charset=utf-8"),
            ("columns", {"columns": json.loads(NEW.to_json(orient="columns"))}, "application/json"),
            ("arrow", arrow(NEW), STREAM),
        ):
            if name == "columns":
                body = {
                    "columns": {key: [*dict(value).values()] for key, value in body[name].items()}
                }
            status, answer = server.ask(body, "/predict?probabilities=true", media)
            assert status == 200, answer
            answers[name] = np.array(answer["probabilities"])
            assert answer["predicted"] == np.array(answer["classes"])[expected.argmax(1)].tolist()
            assert np.allclose(answer["probability"], expected.max(1), rtol=0, atol=1e-6)
    NEW.to_csv(tmp_path / "new.csv", index=False)
    command = [sys.executable, folder / "predict.py", "--probabilities", tmp_path / "new.csv"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answers["predict.py"] = pd.read_csv(io.StringIO(printed))[["p(no)", "p(yes)"]].to_numpy()
    promotion.register(workspace, folder, "rain")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.store_uri(workspace))
    model = mlflow.pyfunc.load_model("models:/simic-rain@champion")
    answers["mlflow"] = model.predict(NEW)[["p(no)", "p(yes)"]].to_numpy()
    assert len(answers) == 6
    largest = {name: float(np.abs(answer - expected).max()) for name, answer in answers.items()}
    print(f"largest difference from the estimator: {largest}")
    assert max(largest.values()) <= 1e-6, largest


def test_the_server_says_what_it_serves_and_counts_what_it_is_sent(networks: list[Path]) -> None:
    with running(networks[0]) as server:
        rows = rows_of(table(300))
        status, answer = server.ask({"rows": [*rows, rows[0] | {"a": 99, "time": "dusk"}]})
        counted = {(column, kind): rows for column, kind, rows in answer["counted"]}
        assert status == 200 and counted[("a", "out of range")] >= 1
        assert counted[("time", "unseen level")] == 1
        assert counted[("b", "missing")] == table(300)["b"].isna().sum() + 1
        assert server.ask({"rows": []})[0] == 422
        page = server.metric
        assert page('simic_values_total{column="time",kind="unseen level"}') == 1
        assert page("simic_rows_total") == page("simic_drift_rows") == 301
        assert page('simic_requests_total{status="200"}') == 1
        assert page('simic_requests_total{status="422"}') == 1
        assert page("simic_request_seconds_count") == 1
        classes = [page(f'simic_predicted_total{{label="{name}"}}') for name in ("no", "yes")]
        assert sum(classes) == 301 and min(classes) > 0
        # Rows drawn as those of training were.
        assert page('simic_drift_psi{column="a"}') < 0.2
        shifted = [row | {"a": 3.0, "time": "dusk"} for row in rows]
        server.ask({"rows": shifted * 4})
        assert min(page(f'simic_drift_psi{{column="{name}"}}') for name in ("a", "time")) > 1
        assert page('simic_drift_psi{column="b"}') < 0.2
        status, model = server.ask(path="/model")
        assert model["card"] == "# A card" and model["contract"]["columns"][0]["name"] == "a"
        assert server.ask(path="/health") == (200, {"status": "ok", "model": model["model"]})
        assert model["model"].startswith("network1-") and page(
            f'simic_model{{version="{model["model"]}"}}'
        )


def test_the_index_is_that_of_the_formula() -> None:
    """(0.7 - 0.5) ln(0.7 / 0.5) + (0.3 - 0.5) ln(0.3 / 0.5) = 0.0673 + 0.1022."""
    index = psi(np.array([0.5, 0.5, 0.0]), np.array([0.7, 0.3, 0.0]))
    assert index == pytest.approx(0.0673 + 0.1022, abs=1e-4)
