"""Is torch.compile worth it for the hosts? Their stacked modules eager and compiled, training in turns.

    python -m benchmarks.compiled [--device cuda] [--cases default mlp small] [--envs 32] [--repeats 5]

One thread, without seeds: with them every mix of blueprints is another shape to compile for, so this is the best case.
Prints seconds per minibatch of all hosts, and of the first epoch, in which it compiles.
"""

import argparse
import time
from collections.abc import Callable

import torch

from benchmarks.clock import in_turns
from benchmarks.population import CASES, TIMED_BATCHES, Case, build, orders
from simic import params
from simic.growth.life.vocabulary import Slots
from simic.training import machine


def epoch(case: Case, envs: int, device: torch.device, compiled: bool) -> Callable[[], object]:
    """Some minibatches of a population."""
    population = build(case, envs, "vmap", device)
    for template in population.templates.host if compiled else ():
        assert template._stacked is not None
        template._stacked.compile()
    slots, data = Slots.empty(envs, population.host.slots, device), case.data(case.training, device)
    order = orders(case, envs, device)
    return lambda: population.train_epoch(slots, data, order)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["default", "mlp", "small"])
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    device = machine.configure(params.Runtime(device=given.device, threads=1))
    for name in given.cases:
        work = {kind: epoch(CASES[name], given.envs, device, kind == "compiled") for kind in ("eager", "compiled")}
        started = time.perf_counter()
        work["compiled"]()
        first = time.perf_counter() - started
        seconds = {kind: taken / TIMED_BATCHES for kind, taken in in_turns(work, given.repeats, device).items()}
        print({"case": name, "envs": given.envs, "first_epoch": first, **seconds}, flush=True)


if __name__ == "__main__":
    main()
