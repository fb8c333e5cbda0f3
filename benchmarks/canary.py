"""What the audit's canary wins with clean code, by seed.

    python -m benchmarks.canary [--seeds 30] [--processes 2]

The least of each way to train, over 1.5, is its limit in ``simic/audit/limits.py``; a test compares.
"""

import argparse
import multiprocessing
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from benchmarks import page
from simic.audit.canary import canary
from simic.audit.certificate import Learning

RESULT = Path("benchmarks/results/canary.json")


def measured(way: Learning, rng_seed: int) -> dict[str, Any]:
    """One canary and its CPU seconds."""
    torch.set_num_threads(1)
    begun = time.process_time()
    found = canary(way, rng_seed)
    return {**found.model_dump(), "rng_seed": rng_seed, "cpu_seconds": time.process_time() - begun}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """By way of learning: how what was won is distributed, and what it cost."""
    found: dict[str, Any] = {"seeds": len({run["rng_seed"] for run in runs}), "runs": runs}
    for way in get_args(Learning):
        own = [run for run in runs if run["learning"] == way]
        won = [run["won_pct"] for run in own]
        seconds = float(np.median([run["cpu_seconds"] for run in own]))
        found[way] = {"worst_pct": min(won), "median_pct": float(np.median(won)), "median_cpu_seconds": seconds}
    return found


def main() -> None:
    """All seeds in all ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    jobs = [(way, seed) for way in get_args(Learning) for seed in range(1, given.seeds + 1)]
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        found = summary(pool.starmap(measured, jobs, chunksize=1))
    page.write_result(RESULT, found)
    print({way: found[way] for way in get_args(Learning)})


if __name__ == "__main__":
    main()
