"""What DVC does with runs, by its own commands: an experiment in a copy of the project, results in an object store."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from tests.conftest import Simic
from tests.helpers import ROOT

STAGE = """
from pathlib import Path
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
seed = Path("params.yaml").read_text().split()[1]
Path("telemetry").mkdir(exist_ok=True)
for name in ("curves.csv", "metrics.json"):
    Path("telemetry", name).write_text(name + seed)
client, experiment = tracking.connect(Workspace(Path.cwd()))
client.log_text(client.create_run(experiment, run_name=f"seed {seed}").info.run_id, "kept", "note.txt")
"""
EVALUATED = """
import json
from pathlib import Path
seed = Path("params.yaml").read_text().split("rng_seed: ")[1].split()[0]
Path("reports").mkdir(exist_ok=True)
Path("reports/metrics.json").write_text(json.dumps({"score": 10.0 * int(seed)}))
"""
DVC_YAML = f"""
stages:
  train:
    cmd: {sys.executable} train.py
    deps: [train.py]
    params: [rng_seed]
    outs: [telemetry: {{persist: true}}]
"""
Dvc = Callable[..., str]


@pytest.fixture
def dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dvc:
    """Runs DVC in a project of one small stage, which is committed to git."""
    for who in ("AUTHOR", "COMMITTER"):  # commits of experiments need one
        monkeypatch.setenv(f"GIT_{who}_NAME", "x")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "x@example.org")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_bytes((ROOT / ".dvc" / "config").read_bytes())
    written = {"dvc.yaml": DVC_YAML, "train.py": STAGE, "params.yaml": "rng_seed: 1\n"}
    written[".gitignore"] = "/mlruns\n/mlflow.db\n/.simic\n/telemetry\n"
    for name, content in written.items():
        (tmp_path / name).write_text(content)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a run"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)

    def call(*arguments: str) -> str:
        command = [sys.executable, "-m", "dvc", *arguments]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    return call


def test_an_experiment_in_a_copy_of_the_project_keeps_its_run(tmp_path: Path, dvc: Dvc) -> None:
    """DVC removes the copy, and would remove MLflow's store in it."""
    dvc("exp", "run", "--temp", "-q", "-n", "apart", "-S", "rng_seed=3")
    client, experiment = tracking.connect(Workspace(tmp_path))
    [run] = client.search_runs([experiment])
    assert run.info.run_name == "seed 3"
    assert run.info.artifact_uri.startswith((tmp_path / "mlruns").as_uri())
    assert (tmp_path / "params.yaml").read_text() == "rng_seed: 1\n"


@pytest.mark.slow
def test_queued_experiments_become_a_table_of_seeds(tmp_path: Path, dvc: Dvc, simic: Simic) -> None:
    """The grid of docs/studies.md, in small; before there is any, that is said."""
    assert "no run was evaluated" in simic.refuses("table", root=tmp_path)
    (tmp_path / "train.py").write_text(EVALUATED)
    described = DVC_YAML.replace("rng_seed", "rng_seed, width").partition("    outs")[0]
    (tmp_path / "dvc.yaml").write_text(
        described + "    metrics: [reports/metrics.json: {cache: false}]\n"
    )
    (tmp_path / "params.yaml").write_text("rng_seed: 1\nwidth: 2\n")
    subprocess.run(["git", "commit", "-qam", "evaluated"], cwd=tmp_path, check=True)
    dvc("exp", "run", "--queue", "-q", "-S", "width=4,8", "-S", "rng_seed=1,2")
    dvc("exp", "run", "--run-all", "-q")
    # By Student's t with one degree of freedom: 15 ± 12.71 * 5.
    expected = [f"width={width}   score 15.00 [-48.53, 78.53] (2 seeds)" for width in (4, 8)]
    code, out, _ = simic("table", root=tmp_path)
    assert code == 0 and sorted(out.splitlines()) == expected
