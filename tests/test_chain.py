"""The whole chain with its real stages, as a user runs it: in a fresh copy, by both entries."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import OUTPUTS, contents, copy_checkout, simic_command

TINY = [
    "train.iterations=2", "train.envs=4", "train.episode_steps=4", "train.batches_per_epoch=2", "prepare.samples=200",
    "prepare.suite.instances={train: 4, val: 2, held_out: 2, held_out_kinds: 2, outside: 2}",
    "headroom.policies=[static]", "headroom.search_tasks=2", "headroom.floors=false", "train.actions.blueprint=[norm]",
    "evaluate.eval_seeds=4", "evaluate.policies=[learned]", "evaluate.epochs=[4, 3]", "runtime.progress=none",
]  # fmt: skip


def call(project: Path, *command: str) -> str:
    """Standard output; the command must succeed."""
    path = f"{project / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(project)}
    result = subprocess.run(
        command, cwd=project, env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_both_entries_compute_the_same_and_then_neither_does_anything(tmp_path: Path) -> None:
    project = tmp_path
    copy_checkout(project)
    simic_command(project)
    overrides = [word for value in TINY for word in ("-S", value)]
    first = call(project, "simic", "run", *overrides)
    words = [line.split()[0] for line in first.splitlines()[-9:]]
    assert words == [
        "what",
        "record",
        "replay",
        "learning",
        "run",
        "next",
        "report",
        "MLflow",
        "all",
    ]
    assert (project / "reports" / "report.html").stat().st_size > 1000
    clean = "Data and pipelines are up to date."
    assert call(project, "dvc", "status").strip() == clean
    # Neither a file that no param names, nor a default that params.yaml leaves out.
    (project / "extensions" / "note.txt").write_text("mine")
    params = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(params.replace("  replay: true", "  # replay: true"))
    assert call(project, "dvc", "status").strip() != clean
    assert call(project, "simic", "run").count("up to date") == 5
    assert call(project, "dvc", "status").strip() == clean
    assert call(project, "dvc", "repro").count("didn't change, skipping") == 5
    by_run = contents(project)

    for folder in OUTPUTS:
        shutil.rmtree(project / folder)
    shutil.rmtree(project / ".dvc" / "cache")
    (project / "dvc.lock").unlink()
    call(project, "dvc", "repro", "--no-run-cache")
    assert call(project, "simic", "run").count("up to date") == 5
    by_repro = contents(project)
    assert sorted(by_run) == sorted(by_repro)
    assert [name for name in by_run if by_run[name] != by_repro[name]] == []
