"""What it costs that every host has a task of its own: a bank of 64 tasks against 64 hosts of one, in turns.

    python -m benchmarks.bank [--hosts 64] [--steps 10] [--repeats 5]

Samples, shapes and decisions are the same: each host plays one schedule of the default suite. Processor seconds, which
another program does not stretch as it does the clock; the ratio of the medians, and of each turn.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from simic import params
from simic.data.batches import Dataset, load_split
from simic.data.prepare import prepare
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import play
from simic.evaluation.schedules import OpenLoop, every_schedule
from simic.params import Params

ROOT = Path(__file__).parents[1]


def first_task(data: Dataset) -> Dataset:
    """The bank's first task alone, with as many classes as the bank's largest."""
    return Dataset(data.x[: len(data)], data.y[: len(data)], data.classes)


def seconds(tree: Params, train: Dataset, val: Dataset, hosts: int) -> float:
    """Of one episode, its reset left out."""
    env = GrowthEnv(tree.train, tree.rng_seed, train, val, torch.arange(hosts))
    kinds = env.budget.runs.nonzero().flatten().tolist()
    schedules = every_schedule([kinds] * env.host.slots, 1, [0], 64)
    actor = OpenLoop([schedules[row % len(schedules)] for row in range(hosts)])
    stamps: list[float] = []
    play(env, actor, 0, lambda *step: stamps.append(time.process_time()), torch.arange(hosts) % env.tasks_in_bank)
    return stamps[-1] - stamps[0]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [f"prepare.suite.instances.train={asked.hosts - 1}", "prepare.suite.instances.val=1"]
    tree = params.load(ROOT / "params.yaml", [*sizes, f"train.episode_steps={asked.steps}"])
    with TemporaryDirectory() as folder:
        prepare(tree.prepare, tree.rng_seed, Path(folder) / "bank", ROOT / "data/raw")
        train, val = (load_split(Path(folder) / "bank", split) for split in ("train", "val"))
    turns = [
        (seconds(tree, train, val, asked.hosts), seconds(tree, first_task(train), first_task(val), asked.hosts))
        for _ in range(asked.repeats + 1)
    ][1:]  # the first warms up
    many, one = (median(side) for side in zip(*turns, strict=True))
    print(f"{asked.hosts} tasks {many:.2f} s, one task {one:.2f} s of the processor: {many / one:.3f} times")
    print("each turn: " + ", ".join(f"{a / b:.3f}" for a, b in turns))


if __name__ == "__main__":
    main()
