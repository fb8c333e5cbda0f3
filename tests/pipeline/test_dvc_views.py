"""What DVC shows of runs, by its own commands: numbers and curves of several; experiments in copies of the project."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from simic.pipeline import mlflow_store
from simic.pipeline.paths import Workspace
from tests.helpers import ROOT

DECLARED = yaml.safe_load((ROOT / "dvc.yaml").read_text())
TRAIN = """
import sys
from pathlib import Path
import numpy as np
from simic.telemetry.curves import CURVES_FILE, METRICS_FILE, Curves
from simic.telemetry.rows import UpdateRow
from tests.helpers import episode

seed = int(Path("params.yaml").read_text().split()[1])
curves = Curves()
for number in range(3):
    metrics = {"entropy": 1 / (seed + number)}
    row = {"env_steps": 1, "validation_accuracy": 50.0 + seed, "best_iteration": 1, "state_chain": ""}
    curves.append(UpdateRow(iteration=number, metrics=metrics, **row), episode())
folder = Path("telemetry")
folder.mkdir(exist_ok=True)
(folder / CURVES_FILE).write_text(curves.csv())
(folder / METRICS_FILE).write_text(curves.metrics())
if "mlflow" in sys.argv:
    from simic.pipeline import mlflow_store
    from simic.pipeline.paths import Workspace
    client, experiment = mlflow_store.connect(Workspace(Path.cwd()))
    client.log_text(client.create_run(experiment, run_name=f"seed {seed}").info.run_id, "kept", "note.txt")
"""
PIPELINE = {
    "stages": {
        "train": {
            "cmd": f"{sys.executable} train.py",
            "deps": ["train.py"],
            "params": ["rng_seed"],
            "outs": [{"telemetry": {"persist": True}}],
        }
    },
    "metrics": DECLARED["metrics"],
    "plots": [each for each in DECLARED["plots"] if isinstance(each, dict)],
}
GITIGNORE = "/mlruns\n/mlflow.db\n/.simic\n/telemetry\n"


class Project:
    """In git, with a stage that writes curves; metrics and plots are declared as in simic's own dvc.yaml."""

    def __init__(self, root: Path, cmd: str):
        self.root = root
        stage = PIPELINE["stages"]["train"] | {"cmd": cmd}
        (root / "dvc.yaml").write_text(yaml.safe_dump(PIPELINE | {"stages": {"train": stage}}))
        (root / "train.py").write_text(TRAIN)
        (root / "params.yaml").write_text("rng_seed: 1\n")
        (root / ".gitignore").write_text(GITIGNORE)
        (root / ".dvc").mkdir()
        (root / ".dvc" / "config").write_bytes((ROOT / ".dvc" / "config").read_bytes())
        self.git("init", "-q")
        self.commit()

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", *who, *arguments], cwd=self.root, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "-qm", "a run")

    def dvc(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "dvc", *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def in_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of experiments need an author; the stage needs simic."""
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "x")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "x@example.org")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.usefixtures("in_git")
def test_numbers_and_curves_of_two_runs_are_compared(tmp_path: Path) -> None:
    """The order of the README: run, commit, an experiment, the difference."""
    project = Project(tmp_path, f"{sys.executable} train.py")
    project.dvc("repro", "-q")
    project.commit()
    project.dvc("exp", "run", "-q", "-n", "other", "-S", "rng_seed=2")
    shown = json.loads(project.dvc("metrics", "diff", "--json", "HEAD", "other"))["telemetry/metrics.json"]
    assert shown["best_validation_score"] == {"old": 51.0, "new": 52.0, "diff": 1.0}
    drawn = json.loads(project.dvc("plots", "diff", "--json", "HEAD", "other"))
    assert set(drawn["data"]) == {name for each in PIPELINE["plots"] for name in each}
    content = drawn["data"]["entropy"][0]["content"]
    seen = {(row["rev"], row["iterations"]): float(row["entropy"]) for row in content["data"]["values"]}
    assert seen == {
        (name, str(done)): 1 / (seed + done - 1) for name, seed in (("HEAD", 1), ("other", 2)) for done in (1, 2, 3)
    }
    assert "other" in project.dvc("exp", "show", "--only-changed", "--csv")


@pytest.mark.usefixtures("in_git")
def test_an_experiment_in_a_copy_of_the_project_keeps_its_run(tmp_path: Path) -> None:
    """DVC removes the copy, and would remove MLflow's store in it."""
    project = Project(tmp_path, f"{sys.executable} train.py mlflow")
    project.dvc("exp", "run", "--temp", "-q", "-n", "apart", "-S", "rng_seed=3")
    client, experiment = mlflow_store.connect(Workspace(tmp_path))
    [run] = client.search_runs([experiment])
    assert run.info.run_name == "seed 3"
    assert run.info.artifact_uri.startswith((tmp_path / "mlruns").as_uri())
    assert (tmp_path / "params.yaml").read_text() == "rng_seed: 1\n"


def test_the_store_is_the_projects_in_such_a_copy_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, elsewhere = tmp_path / ".dvc" / "tmp" / "exps" / "standalone" / "x", tmp_path / "other"
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert mlflow_store.keeper(Workspace(copy)).root == copy  # `dvc repro` sets it too
    monkeypatch.setenv("DVC_EXP_NAME", "brave-mole")
    assert mlflow_store.keeper(Workspace(copy)).root == tmp_path
    assert mlflow_store.keeper(Workspace(tmp_path)).root == tmp_path
    assert mlflow_store.keeper(Workspace(elsewhere)).root == elsewhere
