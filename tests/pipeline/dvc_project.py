"""A project of one small stage, which writes curves: in git, with metrics and plots as in simic's own dvc.yaml."""

import subprocess
import sys
from pathlib import Path

import yaml

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
    """In a folder of its own, committed."""

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
