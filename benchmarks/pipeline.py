"""What everything around the hosts costs, how cost grows with length, and how long the commands take.

    python -m benchmarks.pipeline [--iterations 1000] [--shares 12] [--repeats 2] [--hosts 4096] [--fresh]
                                  [--out FILE.json]

Shares: the default run (or the first iterations of it), with telemetry, checkpoints, live audit and MLflow as
`simic run` has them; seconds of each part over those of the train stage, and of the stages after it. Growth: runs of
small hosts, a quarter as long and in full: seconds of an iteration early and late, resident memory after each fifth,
MLflow calls, seconds of the publication of telemetry and of the audit with its report. Recording: processor seconds of
recording one iteration of very many hosts and of judging it live, against collecting it, which is measured with few of
these hosts and multiplied. Processes: an iteration of the default run in one process and in one per core, in turns.
Commands: with nothing to do, after a small run; best of three. Chain: the small run whole by each of these, in turns,
and its stages alone, called one after the other; median. Prefect's server runs before either. Everything happens in
clones of the last commit; every part is kept when it is done, and the same command goes on from there.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from inspect import isfunction
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from mlflow import MlflowClient
from prefect.testing.utilities import prefect_test_harness

from benchmarks import page
from benchmarks.clock import Clock
from simic import params
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO
from simic.agent.rollout import StepRecord, collect
from simic.audit.live import LiveAudit
from simic.envs.growth_env import GrowthEnv
from simic.growth.batch.population import Population
from simic.pipeline import engine, overrides
from simic.pipeline.mlflow_observer import MlflowObserver
from simic.pipeline.paths import Workspace
from simic.telemetry import publish, timing
from simic.telemetry.columns import EPISODES, STEPS, Columns
from simic.telemetry.recorder import FOLDER, Iteration, Recorder, path_of
from simic.telemetry.rows import UpdateRow
from simic.training import episodes, trainer
from simic.training.checkpoint import CheckpointStore
from simic.training.observers import Observer, RunInfo
from simic.training.session import compose
from simic.training.state import TrainState

RESULT = Path("benchmarks/results/pipeline.json")
FIFTHS = 5
PLAIN, FEW_EPISODES = ["runtime.progress=none"], "evaluate.eval_seeds=2"
ONE_CORE = [*PLAIN, "runtime.threads=1", "runtime.processes=1"]
SMALL = [
    *PLAIN,
    "runtime.threads=1",
    "prepare.suite.instances={train: 3, val: 1, held_out: 3, held_out_kinds: 1}",
    "headroom.policies=[static]",
    "headroom.search_tasks=2",
    "headroom.floors=false",
    "audit.canary=false",
    "train.host={family: mlp, preset: baseline}",
    "train.actions={}",
    "train.envs=4",
    "train.episode_steps=5",
    "train.batches_per_epoch=1",
    "train.policy.encoder_units=16",
    "train.policy.core_units=16",
    "train.policy.head_units=8",
    "train.ppo.epochs=1",
    "train.ppo.minibatches=1",
    FEW_EPISODES,
]
SHORT = [*SMALL, "train.iterations=2"]
COMMANDS = {
    "simic --help": [str(Path(sys.executable).with_name("simic")), "--help"],
    "simic run": [str(Path(sys.executable).with_name("simic")), "run"],
    "dvc repro": [sys.executable, "-m", "dvc", "repro"],
    "Prefect flow": [sys.executable, "-c", "from flows.pipeline import simic; simic()"],
}

ALONE = """
from pathlib import Path
from simic import params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
place = Workspace(Path.cwd())
for stage in stages.STAGES.values():
    stage(params.load(place.params), place)
"""


def workspace(folder: Path, changes: list[str]) -> Workspace:
    """A clone of the last commit with these params."""
    subprocess.run(["git", "clone", "--quiet", str(Path.cwd()), str(folder)], check=True)
    found = Workspace(folder)
    overrides.write(found.params, changes)
    return found


def perform(place: Workspace, name: str, observers: Sequence[Observer] = ()) -> float:
    """Seconds of one stage."""
    started = time.perf_counter()
    engine.perform(name, place, engine.Execution(observers))
    return time.perf_counter() - started


# --- shares ---


def watched() -> Clock:
    """Every part of training that has a name; the time between them belongs to the environment."""
    clock = Clock()
    for method in ("train_epoch", "evaluate"):
        clock.watch(Population, method, "hosts")
    clock.watch(ActorCritic, "act", "policy")
    clock.watch(PPO, "update", "PPO update")
    clock.watch(trainer, "with_advantages", "advantages")
    clock.watch(GrowthEnv, "step", "environment")
    for owner, method in (
        (episodes.Collector, "add"),
        (episodes.Collector, "fetched"),
        (episodes, "events"),
        (Recorder, "write"),
        (Recorder, "flush"),
        (Recorder, "time"),
    ):
        clock.watch(owner, method, "telemetry")
    clock.watch(CheckpointStore, "write", "checkpoints")
    clock.watch(TrainState, "link", "checkpoints")
    for owner, name in ((MlflowObserver, "MLflow"), (LiveAudit, "live audit")):
        for method in ("on_start", "on_rollout", "on_iteration", "on_checkpoint", "on_end"):
            clock.watch(owner, method, name)
    return clock


def shares(place: Workspace) -> dict[str, Any]:
    """Seconds by part of the train stage, and in all."""
    perform(place, "prepare")
    clock = watched()
    try:
        total = perform(place, "train")
    finally:
        clock.stop()
    seconds = dict(clock.seconds)
    seconds["start, end and the rest"] = total - sum(seconds.values())
    sizes = {"telemetry_bytes": _bytes(place.telemetry), "checkpoint_bytes": _bytes(place.checkpoints)}
    train = params.load(place.params).train
    return {
        "iterations": train.iterations,
        "envs": train.envs,
        "episode_steps": train.episode_steps,
        "total_seconds": total,
        "seconds": seconds,
        "evaluate_seconds": perform(place, "evaluate"),
        "audit_seconds": perform(place, "audit"),
        **sizes,
    }


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- growth ---


class Diary(Observer):
    """When each iteration ended, and how much memory was held."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.megabytes: list[float] = []

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        self.times.append(time.perf_counter())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.megabytes.append(pages * resource.getpagesize() / 2**20)


def growth(folder: Path, iterations: int) -> dict[str, Any]:
    """A run of small hosts, looked at early (from a tenth on) and late, and its audit."""
    place = workspace(folder, [*SMALL, f"train.iterations={iterations}", f"train.validate_every={iterations}"])
    perform(place, "prepare")
    perform(place, "headroom")
    diary, clock = Diary(), Clock()
    for method in (name for name, value in vars(MlflowClient).items() if isfunction(value) and name[0] != "_"):
        clock.watch(MlflowClient, method, "MLflow")
    clock.watch(publish, "publish", "publication")
    try:
        perform(place, "train", [diary])
    finally:
        clock.stop()
    perform(place, "evaluate")
    steps = [after - before for before, after in zip(diary.times, diary.times[1:], strict=False)]
    tenth = max(1, iterations // 10)
    return {
        "iterations": iterations,
        "early_seconds": median(steps[tenth : 2 * tenth]),
        "late_seconds": median(steps[-tenth:]),
        "megabytes": [diary.megabytes[round(part * iterations / FIFTHS) - 1] for part in range(1, FIFTHS + 1)],
        "mlflow_calls": clock.calls.get("MLflow", 0),
        "mlflow_seconds_per_call": clock.seconds.get("MLflow", 0.0) / max(1, clock.calls.get("MLflow", 0)),
        "publish_seconds": clock.seconds["publication"],
        "audit_seconds": perform(place, "audit"),
    }


# --- recording ---


def recording(place: Workspace, hosts: int) -> dict[str, float]:
    """Processor seconds of an iteration of ``hosts``, which are copies of the few that are played."""
    perform(place, "prepare")
    tree = params.load(place.params)
    env, state = compose(tree, place.prepared, torch.device("cpu"))
    seen: list[StepRecord] = []
    started = time.process_time()
    collect(env, state.ppo.policy, state.normalizers, 0, tree.rng_seed, env.steps, seen.append)
    copies = hosts // env.num_envs
    collecting = copies * (time.process_time() - started)
    env.close()
    crowd = [
        {name: values.repeat(copies, *[1] * (values.ndim - 1)) for name, values in episodes.step_tensors(step).items()}
        for step in seen
    ]
    episode = {name: np.zeros(hosts, column.kept) for name, column in EPISODES.items()}
    update = UpdateRow(
        iteration=0, env_steps=0, metrics={}, validation_accuracy=0.0, best_iteration=None, state_chain=""
    )
    audit = LiveAudit()
    audit.on_start(RunInfo(tree, place.root, "", 0, lambda finding: None))
    with Recorder(place.root) as log:
        begun = time.process_time()
        collector = episodes.Collector(STEPS)
        for tensors in crowd:
            collector.add(tensors)
        steps = collector.fetched()
        log.write(Iteration(update, steps, episode, None, episodes.events(steps)))
        recorded = time.process_time()
        audit.on_rollout(0, steps)
        audit.on_iteration(update, episode)
        judged = time.process_time()
    return {
        "hosts": hosts,
        "played": env.num_envs,
        "steps": env.steps,
        "collect_seconds": collecting,
        "record_seconds": recorded - begun,
        "live_audit_seconds": judged - recorded,
        "bytes": path_of(place.root / FOLDER, 0).stat().st_size,
    }


# --- several processes ---


def together(folder: Path, repeats: int) -> dict[str, float]:
    """Seconds of an iteration of the default run, rollout and update, in one process with one thread and with all, and
    in one process for each core, in turns.
    """
    cores, found = len(os.sched_getaffinity(0)), dict[str, list[float]]()
    for turn, (processes, threads) in product(range(repeats), ((1, 1), (1, cores), (cores, 1))):
        changes = [*PLAIN, "train.iterations=1", f"runtime.processes={processes}", f"runtime.threads={threads}"]
        place = workspace(folder / f"{turn}-{processes}-{threads}", changes)
        perform(place, "prepare")
        perform(place, "train")
        (row,) = timing.read(place.telemetry / timing.TIMING_FILE)
        seconds = row.collect_seconds + row.update_seconds
        found.setdefault(f"{processes} × {threads}", []).append(seconds)
    return {name: median(seconds) for name, seconds in found.items()}


# --- commands ---


def commands(place: Workspace) -> dict[str, float]:
    """Seconds of each with nothing to do; the chain is completed first."""
    subprocess.run(COMMANDS["simic run"], cwd=place.root, check=True, capture_output=True)
    found = {}
    for name, line in COMMANDS.items():
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            subprocess.run(line, cwd=place.root, check=True, capture_output=True)
            taken.append(time.perf_counter() - started)
        found[name] = min(taken)
    return found


def chain(folder: Path, repeats: int) -> dict[str, float]:
    """Seconds of a small run from nothing by each command."""
    lines = {"the stages alone": [sys.executable, "-c", ALONE]}
    lines |= {name: line for name, line in COMMANDS.items() if name != "simic --help"}
    taken: dict[str, list[float]] = {name: [] for name in lines}
    for turn, (name, line) in product(range(repeats), lines.items()):
        place = workspace(folder / f"{turn}-{name.replace(' ', '-')}", SHORT)
        started = time.perf_counter()
        subprocess.run(line, cwd=place.root, check=True, capture_output=True)
        taken[name].append(time.perf_counter() - started)
    return {name: median(seconds) for name, seconds in taken.items()}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--shares", type=int, default=12, metavar="ITERATIONS")
    parser.add_argument("--repeats", type=int, default=2, help="of the runs in several processes, and of the chain")
    parser.add_argument("--hosts", type=int, default=4096, help="of the iteration that is recorded")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the file")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    found = {} if given.fresh or not given.out.exists() else json.loads(given.out.read_bytes())
    found.pop("provenance", None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parts: dict[str, Callable[[], object]] = {
            "shares": lambda: shares(workspace(folder / "default", [*PLAIN, f"train.iterations={given.shares}"])),
            "growth": lambda: [growth(folder / str(n), n) for n in (given.iterations // 4, given.iterations)],
            "recording": lambda: recording(workspace(folder / "recording", ONE_CORE), given.hosts),
            "processes": lambda: together(folder / "together", given.repeats),
            "commands": lambda: commands(workspace(folder / "commands", SHORT)),
            "chain": lambda: chain(folder / "chain", given.repeats),
        }
        with prefect_test_harness(server_startup_timeout=120):
            for name, measure in parts.items():
                if name not in found:
                    found[name] = measure()
                    found.setdefault("revisions", {})[name] = page.provenance()["revision"]
                    print(json.dumps({name: found[name]}), flush=True)
                    page.write_result(given.out, found)


if __name__ == "__main__":
    main()
