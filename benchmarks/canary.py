"""Measure what the audit's canary wins with clean code, by seed.

    python -m benchmarks.canary [--seeds 30] [--processes 2]

The least of them, over 1.5, is its limit in ``simic/certify/canary.py``; a test compares.
"""

import multiprocessing
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import page
from simic.certify.canary import canary

RESULT = Path("benchmarks/results/canary.json")


def measured(rng_seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    begun = time.process_time()
    found = canary(rng_seed)
    return {**asdict(found), "rng_seed": rng_seed, "cpu_seconds": time.process_time() - begun}


def main() -> None:
    parser = page.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        runs = pool.map(measured, range(1, given.seeds + 1), chunksize=1)
    won, seconds = ([run[name] for run in runs] for name in ("won_pct", "cpu_seconds"))
    found = {"worst_pct": min(won), "median_pct": median(won), "median_cpu_seconds": median(seconds)}
    page.write_result(RESULT, {"seeds": len(runs), "runs": runs} | found)
    print(found)


if __name__ == "__main__":
    main()
