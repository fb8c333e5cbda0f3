"""The ratios that may not fall in CI: seconds of hosts one by one over those of ours (``auto``).

    python -m benchmarks.speed_gate [--processes 7]

Large hosts run one by one in ours as well, so their yardstick is plain torch modules, which have no seeds; small ones
have seeds of every kind, beside our own loop. Training on one thread, in turns, medians; each time in a fresh process,
because what a process did before (its heap, its threads) moves the ratio. The record keeps every process's.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmarks import page
from benchmarks.population import CASES, ours, plain
from simic import params
from simic.growth.batch.autotune import in_turns
from simic.training import machine

RESULT = Path("benchmarks/results/speed_gate.json")
TURNS = 12


@dataclass(frozen=True)
class Gate:
    """A case of ``benchmarks.population``, how many hosts, and what ours is timed beside."""

    case: str
    envs: int
    beside: str

    def ratio(self) -> float:
        """Of this process."""
        device = machine.configure(params.Runtime(device="cpu", threads=1))
        case, seeds = CASES[self.case], self.beside == "loop"
        own = partial(ours, case, self.envs, device=device, seeds=seeds)
        yardstick = own("loop") if seeds else plain(case, self.envs, device, torch.channels_last)
        work: dict[str, Callable[[], object]] = {"beside": yardstick, "ours": own("auto")}
        seconds = in_turns(work, TURNS, device)
        return seconds["beside"] / seconds["ours"]

    def fresh_ratio(self) -> float:
        """Of a process of its own."""
        command = [sys.executable, "-m", "benchmarks.speed_gate", "--one", self.case]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        return float(done.stdout)


GATES = {gate.case: gate for gate in (Gate("reference", 4, "plain channels-last"), Gate("small", 32, "loop"))}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--one", choices=list(GATES), help="print the ratio of this process for this case")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    if given.one:
        print(GATES[given.one].ratio())
        return
    torch.set_num_threads(1)  # of the record's provenance
    found = []
    for gate in GATES.values():
        ratios = [gate.fresh_ratio() for _ in range(given.processes)]
        found.append(vars(gate) | {"ratios": ratios, "median": median(ratios)})
        print(found[-1], flush=True)
    page.write_result(given.out, {"gates": found})


if __name__ == "__main__":
    main()
