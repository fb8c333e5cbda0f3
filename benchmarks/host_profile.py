"""Where the time of training many hosts goes: torch's profiler over some minibatches, by kind of operation.

    python -m benchmarks.host_profile [--device cuda] [--trace FOLDER] [--out FILE.json]

One thread. Milliseconds per minibatch of all hosts, with and without seeds. *Outside operations* is the rest of the
wall time: Python, and building the graph. ``--trace`` also writes each as a trace for https://ui.perfetto.dev. The
profiler itself costs time, most where operations are many and small. Dispatch: the same minibatches with a single
sample each, not profiled, in turns with one plain network: what is left when there is nothing to compute, hence about
the least that a faster device could take.
"""

import argparse
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import page
from benchmarks.clock import in_turns
from benchmarks.population import CASES, TIMED_BATCHES, ours, plain, wait
from simic import params
from simic.training import machine

RESULT = Path("benchmarks/results/host_profile.json")
RUNS = (("reference", 4), ("small", 32), ("default", 64), ("mlp", 32), ("transformer", 16))
REPEATS = 3
# The first kind of which a part is in an operation's name.
KINDS = {
    "convolutions": ("conv",),
    "matrix products": ("mm", "linear", "dot"),
    "norms": ("norm",),
    "pooling": ("pool",),
    "copies": (
        "copy",
        "cat",
        "stack",
        "index",
        "select",
        "gather",
        "scatter",
        "fill",
        "zero",
        "repeat",
        "clone",
        "pad",
    ),
    "softmax and loss": ("softmax", "nll", "argmax"),
}
OTHER, OUTSIDE = "element by element", "outside operations"


def kind_of(operation: str) -> str:
    """Of an ATen operation or a kernel."""
    name = operation.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), OTHER)


def by_kind(operations: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sums over operations and their seconds."""
    found = dict.fromkeys([*KINDS, OTHER], 0.0)
    for name, seconds in operations:
        found[kind_of(name)] += seconds
    return found


def measure(case: str, envs: int, seeds: bool, device: torch.device, trace: Path | None) -> dict[str, Any]:
    """Seconds of one minibatch by kind of operation, and the five operations that took most."""
    work = ours(CASES[case], envs, "auto", device, seeds)
    work()
    gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU], acc_events=True) as profiler:
        wait(device)
        started = time.perf_counter()
        for _ in range(REPEATS):
            work()
        wait(device)
        taken = time.perf_counter() - started
    batches = REPEATS * TIMED_BATCHES
    events = [
        (each.key, (each.self_device_time_total if gpu else each.self_cpu_time_total) / 1e6 / batches, each.count)
        for each in profiler.key_averages()
    ]
    seconds = by_kind((name, spent) for name, spent, _ in events)
    seconds[OUTSIDE] = max(0.0, taken / batches - sum(seconds.values()))
    largest = sorted(events, key=lambda event: -event[1])[:5]
    if trace is not None:
        trace.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(trace / f"{case}-{envs}{'-seeds' if seeds else ''}.json.gz"))
    return {
        "case": case,
        "envs": envs,
        "seeds": seeds,
        "seconds": seconds,
        "operations": sum(count for *_, count in events) / batches,
        "largest": [{"name": name, "seconds": spent, "calls": count / batches} for name, spent, count in largest],
    }


def dispatch(case: str, envs: int, device: torch.device) -> dict[str, Any]:
    """Seconds of a minibatch of one sample: of one plain network, and of all hosts, stacked."""
    tiny = replace(CASES[case], batch=1)
    work = {
        "one plain network": plain(tiny, 1, device, torch.contiguous_format),
        "hosts": ours(tiny, envs, "vmap", device, seeds=False),
        "hosts with seeds": ours(tiny, envs, "vmap", device, seeds=True),
    }
    seconds = in_turns(work, REPEATS, device)
    return {"case": case, "envs": envs, "seconds": {name: value / TIMED_BATCHES for name, value in seconds.items()}}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    device = machine.configure(params.Runtime(device=given.device, threads=1))
    rows = []
    for case, envs in RUNS:
        for seeds in (False, True):
            rows.append(measure(case, envs, seeds, device, given.trace))
            print(rows[-1], flush=True)
    least = [dispatch(case, envs, device) for case, envs in RUNS]
    page.write_result(given.out, {"device": str(device), "rows": rows, "dispatch": least})


if __name__ == "__main__":
    main()
