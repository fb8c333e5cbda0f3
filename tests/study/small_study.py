"""A study whose cells take seconds: two learning rates × two training seeds on a few digits."""

import csv
from pathlib import Path
from typing import Any

import yaml

from simic.pipeline.paths import Workspace
from simic.study import file
from simic.study.plan import StudyPlan
from tests.helpers import ROOT

BASE = [
    "prepare.task=digits", "prepare.samples=200", "headroom.schedules=2", "headroom.search_tasks=1",
    "headroom.floors=false", "evaluate.eval_seeds=2", "evaluate.static_final=false",
    "train={envs: 4, episode_steps: 4, batches_per_epoch: 1, batch_size: 16, iterations: 3}",
    "train.host={family: mlp, preset: baseline}",
    "train.ppo={epochs: 1, minibatches: 2}", "train.lifecycle.training_dwell=0",
    "train.policy={core_units: 16, encoder_units: 16, head_units: 16}",
]  # fmt: skip
STUDY: dict[str, Any] = {
    "name": "rates",
    "base": BASE,
    "grid": {"train.ppo.learning_rate": [0.001, 0.01]},
    "seeds": [1, 4],
    "policies": ["learned", "static"],
}


def project(folder: Path, **changes: Any) -> Path:
    """The study's file in a project with the shipped params."""
    (folder / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    path = folder / "rates.yaml"
    path.write_text(yaml.safe_dump(STUDY | changes, sort_keys=False))
    return path


def plan(folder: Path, **changes: Any) -> StudyPlan:
    path = project(folder, **changes)
    return StudyPlan.of(file.read(path), path, Workspace(folder))


def rows(path: Path) -> list[dict[str, str]]:
    """Of a table, without the times that it took."""
    with path.open(encoding="utf-8", newline="") as text:
        return [{name: value for name, value in row.items() if name != "cell_seconds"} for row in csv.DictReader(text)]
