"""Watch the speed of hosts in CI: operations of a few minibatches, and the time of hosts one by one over ours.

    python -m benchmarks.speed_gate [--processes 7]

Large hosts run one by one in ours as well, so their yardstick is plain torch modules, which have no seeds; small ones
have seeds of every kind, beside our own loop. Training on one thread, in turns, medians; each time in a fresh process,
because what a process did before (its heap, its threads) moves the ratio. The ratio depends on the machine (1.7 on one,
2.3 on another), the number of operations does not: most of a small host's time is spent issuing them.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import page
from benchmarks.population import CASES, in_turns, ours, plain
from simic import params
from simic.training import machine

RESULT = Path("benchmarks/results/speed_gate.json")
TURNS = 12


class Counter(TorchDispatchMode):
    """Count the operations that reach a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Gate:
    """A case of ``benchmarks.population``, how many hosts, and what ours is timed beside."""

    case: str
    envs: int
    beside: str

    def operations(self) -> int:
        """Count our operations in a few minibatches, forward, backward and step; the same on every machine."""
        device = machine.configure(params.Runtime(device="cpu"))
        work = ours(CASES[self.case], self.envs, "auto", device=device, seeds=self.beside == "loop")
        # Once before it counts: the first call fills caches.
        work()
        with Counter() as counter:
            work()
        return counter.operations

    def ratio(self) -> float:
        """Measure the ratio in this process."""
        device = machine.configure(params.Runtime(device="cpu", threads=1))
        case = CASES[self.case]
        seeds = self.beside == "loop"
        ours_on_device = partial(ours, case, self.envs, device=device, seeds=seeds)
        yardstick = (
            ours_on_device("loop") if seeds else plain(case, self.envs, device, torch.channels_last)
        )
        work: dict[str, Callable[[], object]] = {
            "beside": yardstick,
            "ours": ours_on_device("auto"),
        }
        seconds = in_turns(work, TURNS, device)
        return seconds["beside"] / seconds["ours"]


GATES = {
    gate.case: gate
    for gate in (Gate("reference", 4, "plain channels-last"), Gate("small", 32, "loop"))
}


def main() -> None:
    parser = page.parser(__doc__, RESULT)
    parser.add_argument("--processes", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)  # of the record's provenance
    rows = []
    spawn = multiprocessing.get_context("spawn")
    for gate in GATES.values():
        with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as pool:
            ratios = [pool.submit(gate.ratio).result() for _ in range(options.processes)]
        rows.append(
            vars(gate)
            | {"operations": gate.operations(), "ratios": ratios, "median": median(ratios)}
        )
        print(rows[-1], flush=True)
    page.write_result(options.out, {"gates": rows})


if __name__ == "__main__":
    main()
