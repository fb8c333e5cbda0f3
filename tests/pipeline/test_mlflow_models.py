"""The registered policy is a model that anybody with MLflow can load and serve, without simic."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simic import seals
from simic.agent.export import export_policy
from simic.pipeline import mlflow_models, mlflow_store
from simic.pipeline.paths import Workspace
from simic.pipeline.simic_policy import ServedPolicy
from tests.agent.worlds import make_policy
from tests.pipeline.test_promote import track

# Where simic cannot be imported: replays an episode with several versions of the registry, loaded at the same time, and
# serves one.
REPLAY = """
import sys
sys.modules["simic"] = None
import mlflow
from pathlib import Path
import numpy as np
from fastapi.testclient import TestClient
from mlflow.pyfunc import scoring_server

episode, out, request, *models = sys.argv[1:]
episode, found = np.load(episode), {}
policies = {name: mlflow.pyfunc.load_model(f"models:/simic-tables@{name}") for name in models}
for alias, policy in policies.items():
    names = policy.metadata.get_input_schema().input_names()
    outputs = policy.metadata.get_output_schema().input_names()
    memory = {name: np.zeros_like(episode[name][0]) for name in "hc"}
    steps = []
    for step in range(len(episode["features"])):
        seen = {name: episode[name][step] for name in names if name not in memory}
        steps.append(policy.predict({**seen, **memory}))
        assert list(steps[-1]) == outputs
        memory = {name: steps[-1][name] for name in memory}
    found |= {f"{alias}/{name}": np.stack([step[name] for step in steps]) for name in outputs}
    assert policy.input_example.keys() == set(names)
    policy.predict(policy.input_example)
np.savez(out, **found)
kind = {"Content-Type": "application/json"}
with TestClient(scoring_server.init(policy)) as client:
    answer = client.post("/invocations", content=Path(request).read_bytes(), headers=kind)
    assert answer.status_code == 200, answer.text
    print("\\nanswer " + answer.text)
    broken = client.post("/invocations", content=b'{"inputs": {"h": [[0.0]]}}', headers=kind)
    assert broken.status_code == 400 and "features" in broken.text, broken.text
"""


@pytest.fixture(scope="module")
def registered(suite_run: Workspace, initialised: bytes, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A finished run whose policy is challenger and champion; read only."""
    folder = tmp_path_factory.mktemp("registered") / "project"
    for place in ("models", "checkpoints", "reports", "data", str(seals.FOLDER)):
        shutil.copytree(suite_run.root / place, folder / place, dirs_exist_ok=True)
    workspace = Workspace(folder)
    (folder / "mlflow.db").write_bytes(initialised)
    track(workspace, "a" * 16)
    client, _ = mlflow_store.connect(workspace)
    for alias in (mlflow_models.CHAMPION, mlflow_models.CHALLENGER):
        client.set_registered_model_alias("simic-tables", alias, "1")
    return workspace


def replayed(workspace: Workspace, *arguments: str) -> str:
    """What REPLAY says, in a process that has no simic, in a folder of its own."""
    folder = workspace.root.with_name("elsewhere")
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"MLFLOW_TRACKING_URI": mlflow_store.store_uri(workspace), "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-c", REPLAY, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def inputs(program: Path, steps: int) -> dict[str, np.ndarray]:
    """What a program may be given at so many steps, every choice allowed; memory that nobody has."""
    described, rng = json.loads((program / "policy.json").read_bytes()), np.random.default_rng(1)
    specs = mlflow_models.signature(described).inputs.inputs
    given = {spec.name: np.zeros((steps, 5, *spec.shape[1:]), spec.type) for spec in specs}
    given["features"] += rng.normal(size=given["features"].shape).astype(given["features"].dtype)
    return {name: ~values if values.dtype == bool else values for name, values in given.items()}


def test_champion_and_challenger_decide_like_the_program_step_after_step_without_simic(
    registered: Workspace, tmp_path: Path
) -> None:
    """The program decides like the policy: tests/agent/test_export.py. MLflow's scoring server answers the request that
    came with the model, and refuses what is no observation.
    """
    given, aliases = inputs(registered.models / "program", 6), (mlflow_models.CHAMPION, mlflow_models.CHALLENGER)
    files = tmp_path / "episode.npz", tmp_path / "replayed.npz"
    np.savez(files[0], **given)
    client, _ = mlflow_store.connect(registered)
    source = client.get_model_version_by_alias("simic-tables", "champion").source or ""
    request = Path(source.removeprefix("file://")) / "serving_input_example.json"
    said = replayed(registered, *map(str, files), str(request), *aliases)
    assert "mismatch" not in said  # between requirements and what is installed
    played, program = np.load(files[1]), ServedPolicy(registered.models / "program")
    memory = {name: given[name][0] for name in "hc"}
    for step in range(6):
        expected = program.predict({name: values[step] for name, values in given.items()} | memory)
        memory = {name: expected[name] for name in "hc"}
        assert memory["h"].any()
        for alias in aliases:
            for name, values in expected.items():
                assert np.allclose(played[f"{alias}/{name}"][step], values, atol=1e-6), (alias, step, name)
    [answer] = [line.removeprefix("answer ") for line in said.splitlines() if line.startswith("answer ")]
    asked = {name: np.array(values) for name, values in json.loads(request.read_bytes())["inputs"].items()}
    for name, values in program.predict(asked).items():
        assert np.allclose(json.loads(answer)["predictions"][name], values, atol=1e-6), name


def test_the_model_is_whole_and_nothing_in_it_is_pickled(registered: Workspace, tmp_path: Path) -> None:
    client, experiment_id = mlflow_store.connect(registered)
    version = client.get_model_version_by_alias("simic-tables", "champion")
    [model] = mlflow_models.models(client, experiment_id, version.run_id or "", mlflow_models.POLICY)
    assert json.loads(model.tags["mlflow.modelVersions"]) == [{"name": "simic-tables", "version": version.version}]
    folder = mlflow_models.package(registered.models, tmp_path / "model", model)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"MLmodel", "requirements.txt", "python_env.yaml", "code/simic_policy.py", "input_example.json"} <= names
    assert not [name for name in names if name.endswith((".pkl", ".pyc"))]
    pins = (folder / "requirements.txt").read_text().split()
    assert [pin.partition("==")[0] for pin in pins] == ["mlflow", "numpy", "torch"] and "+" not in "".join(pins)


def test_what_comes_out_is_what_the_signature_says_without_a_memory_too(tmp_path: Path) -> None:
    signature = mlflow_models.signature(export_policy(make_policy("none"), None, tmp_path / "program"))
    given = inputs(tmp_path / "program", 1)
    done = ServedPolicy(tmp_path / "program").predict({name: values[0] for name, values in given.items()})
    assert list(done) == signature.outputs.input_names()
    for spec in signature.outputs.inputs:
        assert (done[spec.name].dtype, done[spec.name].shape) == (spec.type, (5, *spec.shape[1:])), spec.name
