"""Runs without a fault, to hold the audit against: what it finds in one of them is a false alarm.

    python -m benchmarks.clean_runs FOLDER [--seeds 10] [--first 1] [--processes 2] [--again]

Four settings, each of a few minutes of one core and with something to win, each with so many seeds: ``default`` (the
suite of the default run, its warm start and PPO after it), ``planted`` (a generated task, PPO alone), ``text`` (a
transformer on $SIMIC_DATA_DIR/tinyshakespeare.txt, warm start and PPO) and ``large`` (images of 28 x 28, of
$SIMIC_DATA_DIR/mnist, under SGD). All stages run, watched by the live audit, with the certificate. Runs that are there
already are not done again. Then: python -m benchmarks.calibration FOLDER/*
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from simic import params
from simic.audit.live import LiveAudit
from simic.data.synthetic import PLANTED
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.faults.setting import TREE

SMALL = [
    "runtime.device=cpu",
    "runtime.processes=1",
    "runtime.threads=1",
    "runtime.progress=none",
]
# With as many updates of PPO as the audit's symptoms ask for, and as many evaluation seeds.
SHORT = [
    "train.validate_every=5", "train.lifecycle.training_dwell=1", "train.lifecycle.blending_dwell=1",
    "train.lifecycle.min_prune_age=2", "train.lifecycle.max_seeds=1", "train.reward.mode=score",
    "train.policy={encoder_units: 32, core_units: 32, head_units: 32}", "train.ppo.minibatches=2",
    "evaluate.eval_seeds=20", "headroom.policies=[static]", "headroom.schedules=4", "headroom.search_tasks=2",
    "headroom.floors=false",
]  # fmt: skip
SETTINGS: dict[str, list[str]] = {
    "default": ["train.ppo.learning_rate=0.001", "evaluate.eval_seeds=20"],
    "planted": [
        *PLANTED["orientation"].overrides, *SHORT, "train.batches_per_epoch=4",
        "train.iterations=24", "train.envs=32", "train.episode_steps=12",
        "train.actions={style: [linear_add], alpha_target: [1.0]}",
    ],
    "text": [
        "prepare.task=text", "prepare.source=tinyshakespeare.txt", "prepare.samples=1200", "prepare.context=16", *SHORT,
        "train.host={family: transformer, preset: impaired}", "train.batches_per_epoch=8", "train.batch_size=16",
        "train.host_optimizer={name: adamw, learning_rate: 0.005}",
        "train.iterations=13", "train.envs=12", "train.episode_steps=14",
        "train.lifecycle.param_budget=4.0",
        "train.actions={slot: [0, 1], blueprint: [norm, attention], style: [linear_add], alpha_target: [1.0]}",
    ],
    "large": [
        "prepare.task=mnist", "prepare.samples=1500", *SHORT, "train.host={family: cnn, preset: impaired}",
        "train.batches_per_epoch=4", "train.host_optimizer={name: sgd, learning_rate: 0.05}",
        "train.iterations=13", "train.envs=12", "train.episode_steps=14",
        "train.actions={slot: [0, 1], blueprint: [norm, depthwise], style: [linear_add], alpha_target: [1.0]}",
    ],
}  # fmt: skip


def settings(name: str, rng_seed: int) -> list[str]:
    """Overrides of params.yaml."""
    return [*SETTINGS[name], f"rng_seed={rng_seed}", *SMALL]


def run(name: str, rng_seed: int, folder: Path) -> None:
    """All stages in this process, or the audit of a run that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    workspace = Workspace(folder)
    if not workspace.params.exists():
        base: dict[str, Any] = TREE if name == "default" else {}
        YAML(typ="safe", pure=True).dump(base, workspace.params)
    tree = params.load(workspace.params, settings(name, rng_seed), whole=False)
    for stage, do in stages.STAGES.items():
        if stage != "audit" and workspace.evaluation.exists():
            continue
        if stage == "train":
            stages.train(tree, workspace, (LiveAudit(),))
        else:
            do(tree, workspace)


def attempt(name: str, rng_seed: int, folder: Path, again: bool) -> str:
    """One line about a run in a process of its own, unless it is there."""
    findings = Workspace(folder).reports / "findings.json"
    if again or not findings.exists():
        command = [sys.executable, "-m", "benchmarks.clean_runs", "--one", name, str(rng_seed), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{folder.name}: {done.stderr.strip().splitlines()[-1]}"
    results = json.loads(findings.read_bytes())["results"]
    found = [f"{each['severity']} {each['check']}" for each in results if each["status"] == "finding"]
    return f"{folder.name}: {', '.join(found) or 'nothing found'}"


def main() -> None:
    """Make those that are missing; say what the audit found in each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--one", nargs=3, metavar=("SETTING", "SEED", "FOLDER"), help="one run in this process")
    parser.add_argument("--first", type=int, default=1, help="seed")
    parser.add_argument("--again", action="store_true", help="audit runs that are there once more")
    given = parser.parse_args()
    if given.one:
        run(given.one[0], int(given.one[1]), Path(given.one[2]))
        return
    if given.folder is None:
        parser.error("FOLDER: where the runs are to be")
    wanted = [(name, seed) for seed in range(given.first, given.first + given.seeds) for name in SETTINGS]
    with ThreadPoolExecutor(given.processes) as pool:
        begun = [pool.submit(attempt, *each, given.folder / f"{each[0]}-{each[1]}", given.again) for each in wanted]
        for line in (each.result() for each in begun):
            print(line, flush=True)


if __name__ == "__main__":
    main()
