"""What an episode of the default hosts costs one core when they run in smaller groups, as they do in more processes.

    python -m benchmarks.groups [--hosts 64] [--turns 2]

Random legal actions on the real data; seconds of processor time, by hosts of a group, in turns.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from simic import params, rng
from simic.data.batches import load_split
from simic.data.prepare import prepare
from simic.envs.actions import random_legal
from simic.envs.growth_env import GrowthEnv
from simic.growth.batch.shards import Layout, Shards
from simic.training import machine


def episode(env: GrowthEnv) -> float:
    """Seconds of processor time."""
    started = time.process_time()
    seen, _ = env.reset(options={"iteration": 0})
    for step in range(env.steps):
        key = rng.key(7, rng.Purpose.BASELINE, 0, env.env_ids, step)
        seen, *_ = env.step(random_legal(env.action_spec, seen, rng.uniform(key, (len(env.action_spec.heads),))))
    return time.process_time() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--turns", type=int, default=2)
    given, tree = parser.parse_args(), params.load(Path("params.yaml"))
    machine.configure(tree.runtime.model_copy(update={"threads": 1, "device": "cpu"}))
    with tempfile.TemporaryDirectory() as folder:
        prepare(tree.prepare, tree.rng_seed, Path(folder) / "prepared", Path(folder))
        training, checked = (load_split(Path(folder) / "prepared", split) for split in ("train", "val"))
    sizes = [given.hosts // parts for parts in (1, 2, 4, 8, 16) if given.hosts >= 4 * parts]
    for _ in range(given.turns):
        for group in sizes:
            compose = partial(Shards, layout=Layout(given.hosts, group, 1), setup=time.time)
            hosts = torch.arange(given.hosts)
            env = GrowthEnv(tree.train, tree.rng_seed, training, checked, hosts, compose=compose)
            print(f"{given.hosts} hosts in groups of {group}: {episode(env):.1f} s", flush=True)


if __name__ == "__main__":
    main()
