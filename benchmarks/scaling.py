"""docs/scaling.md: what a large study and a very large population would take, computed from what was measured.

    python -m benchmarks.scaling

Inputs: benchmarks/results/pipeline.json and host_profile.json, the sizes of hosts and seeds of params.yaml, the bytes
that a minibatch keeps for its backward pass (counted here), and the assumptions of ``Gpu``. Run it again after a
benchmark.
"""

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from benchmarks import page
from benchmarks.population import CASES, Case, build, mixed, orders
from simic import durable, params
from simic.growth.batch.optimizers import MOMENTS
from simic.growth.batch.population import Population

PAGE = Path("docs/scaling.md")
STUDY_RUNS, HOSTS = 10_000, 100_000
WORKERS, GPUS, ENVS = (10, 100, 1000), (1, 4, 16, 64), (1, 64, 256, 8192)
FLOAT, SNAPSHOTS, COUNTED_HOSTS = 4, 2, 16


@dataclass(frozen=True)
class Gpu:
    """Assumed, not measured: an H200 by its data sheet, of whose float32 operations small hosts reach a share."""

    memory: float = 141e9
    bytes_per_second: float = 4.8e12
    flops: float = 67e12
    share: float = 0.1
    passes: float = 6.0  # over what a minibatch keeps: written and read forward, read backward, gradients and moments


def parameter_bytes(population: Population) -> int:
    """Of a host with a row for every seed and gate it may ever have, moments and a snapshot included."""
    seeds = sum(template.params for slot in population.templates.seeds for template in slot)
    gates = sum(template.params for template in population.templates.gates)
    rows = population.host.params + seeds + gates
    return FLOAT * rows * (1 + len(MOMENTS[population.optimizer.name])) * SNAPSHOTS


def kept_bytes(case: Case) -> float:
    """What a host with seeds in two of three slots keeps for the backward pass of a minibatch, each storage once."""
    population = build(case, COUNTED_HOSTS, "vmap", torch.device("cpu"))
    slots, data = mixed(population), case.data(case.training, torch.device("cpu"))
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        population.train_epoch(slots, data, orders(case, COUNTED_HOSTS, torch.device("cpu"))[:, :1])
    return sum(storages.values()) / COUNTED_HOSTS


def study(found: dict[str, Any], iterations: int) -> list[str]:
    """Core hours, time by number of workers, disk, and who is asked too often first."""
    shares, cores = found["shares"], found["provenance"]["cores"]
    short, long = sorted(found["growth"], key=lambda run: run["iterations"])
    per_iteration = (long["mlflow_calls"] - short["mlflow_calls"]) / (long["iterations"] - short["iterations"])
    name, iteration = min(found["processes"].items(), key=lambda each: each[1])
    run = iteration * iterations + shares["evaluate_seconds"] + shares["audit_seconds"]
    calls = short["mlflow_calls"] + per_iteration * (iterations - short["iterations"])
    per_call = long["mlflow_seconds_per_call"]
    disk = shares["telemetry_bytes"] / shares["iterations"] * iterations + shares["checkpoint_bytes"]
    full = run / (calls * per_call)
    rows = [
        (f"{workers:,}", f"{STUDY_RUNS * run / workers / 3600:,.1f}", f"{workers * calls / run:,.2f}")
        for workers in WORKERS
    ]
    return [
        f"## A study of {STUDY_RUNS:,} runs",
        "",
        *wrap(
            f"A run is params.yaml: {iterations} iterations of {shares['envs']} hosts, {shares['episode_steps']} steps "
            f"each, then evaluation and audit. Measured on a worker of {cores} cores ({name} processes × threads): "
            f"{iteration:.1f} s an iteration, {shares['evaluate_seconds']:.0f} s of evaluation, "
            f"{shares['audit_seconds']:.0f} s of audit; so {run / 60:.1f} minutes a run and "
            f"{STUDY_RUNS * run * cores / 3600:,.0f} core hours in all. "
        ),
        "",
        *page.table(("workers", "hours", "MLflow calls per second"), rows),
        "",
        *wrap(
            f"Disk: {disk / 1e6:.1f} MB of telemetry and checkpoints a run, {STUDY_RUNS * disk / 1e9:,.0f} GB in all."
        ),
        "",
        *wrap(
            f"**First bottleneck**: compute, up to about {full:,.0f} workers; there the one MLflow store, which takes "
            f"{1000 * per_call:.1f} ms for a call ({calls:.0f} calls a run, SQLite on a local disk), is busy all the "
            "time. A database server behind MLflow raises that limit; runs wait for each other nowhere else."
        ),
    ]


def wrap(text: str) -> list[str]:
    """A paragraph."""
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


def one_gpu(profile: dict[str, Any], case: str) -> list[str]:
    """What the profile on a processor lets us expect of hosts with seeds on a GPU, by number of hosts."""
    gpu, kept = Gpu(), kept_bytes(CASES[case])
    least = next(row["seconds"] for row in profile["dispatch"] if row["case"] == case)
    flop = 3 * CASES[case].build().flops_per_sample * CASES[case].batch
    device = max(flop / gpu.flops / gpu.share, gpu.passes * kept / gpu.bytes_per_second)
    rows = []
    for envs in ENVS:
        ours, loop = max(least["hosts with seeds"], envs * device), envs * max(least["one plain network"], device)
        rows.append((f"{envs:,}", f"{1000 * ours:.1f}", f"{1e6 * ours / envs:.1f}", f"{loop / ours:.1f}"))
    full = least["hosts with seeds"] / device
    return [
        f"## One GPU, {case} case",
        "",
        *wrap(
            "Expected, not measured. Launch overhead dominates in eager PyTorch: "
            f"{1000 * least['hosts with seeds']:.1f} ms a minibatch of all hosts with seeds, whatever their number, "
            f"and {1000 * least['one plain network']:.2f} ms for each network, without seeds, of a plain loop "
            "(`benchmarks.host_profile`). The device needs "
            f"{1e6 * device:.1f} µs a host: {flop / 1e9:.2f} GFLOP at {gpu.share:.0%} of {gpu.flops / 1e12:.0f} "
            f"TFLOP/s, or {kept / 1e6:.1f} MB kept, {gpu.passes:.0f} times over at "
            f"{gpu.bytes_per_second / 1e12:.1f} TB/s, whichever is longer. So throughput should grow linearly to "
            f"about {full:,.0f} hosts; below that CUDA graphs would help (not built)."
        ),
        "",
        *page.table(("hosts", "ms a minibatch", "µs a host", "times a plain loop"), rows),
    ]


def crowd(found: dict[str, Any], case: Case, steps: int) -> list[str]:
    """Memory and seconds of an iteration of very many hosts over several GPUs."""
    population, gpu, shares = build(case, 1, "vmap", torch.device("cpu")), Gpu(), found["shares"]
    resident, kept = parameter_bytes(population), kept_bytes(case)
    flop = 3 * case.build().flops_per_sample * case.batch * case.batches * steps
    decisions = shares["iterations"] * shares["envs"] * shares["episode_steps"]
    environment = steps * shares["seconds"]["environment"] / (decisions / shares["envs"])
    recording = found["recording"]
    telemetry = recording["record_seconds"] / recording["hosts"]
    written = recording["bytes"] / recording["hosts"] * HOSTS
    hosts = flop / gpu.flops / gpu.share
    rows = []
    for here, gpus in ((HOSTS / gpus, gpus) for gpus in GPUS):
        free = gpu.memory - here * resident
        at_once = f"{min(here, free / kept):,.0f}" if free > kept else "none"
        parameters = f"{here * resident / 1e9:,.1f} GB"
        rows.append((str(gpus), parameters, at_once, f"{here * hosts:,.1f}", f"{here * telemetry:,.1f}"))
    head = ("GPUs", "parameters on each", "hosts at once", "s of hosts", "s of telemetry")
    times = max(hosts, telemetry) / min(hosts, telemetry)
    slower = "telemetry" if telemetry > hosts else "the hosts' own arithmetic"
    return [
        f"## {HOSTS:,} hosts at once",
        "",
        *wrap(
            "Hosts of params.yaml under SGD, with room for every seed they may have: "
            f"{resident / 1e3:,.0f} kB each with momentum and a snapshot; a minibatch keeps {kept / 1e6:.2f} MB of "
            "each host that runs for its backward pass. Where that does not fit, hosts run in groups "
            "(`Population.group`). Assumed: "
            f"{gpu.memory / 1e9:.0f} GB and {gpu.flops / 1e12:.0f} TFLOP/s a GPU, used to {gpu.share:.0%}; telemetry "
            f"as measured here, one process per GPU; {environment:.1f} s of environment for any number of hosts "
            f"(measured with {shares['envs']}). Seconds are those of an iteration."
        ),
        "",
        *page.table(head, rows),
        "",
        *wrap(f"Telemetry writes {written / 1e9:.1f} GB an iteration, since every decision is kept."),
        "",
        *wrap(
            f"**First bottleneck**: {slower}, {times:.2g} times the other. Memory "
            "binds only where the table says that not all hosts run at once."
        ),
    ]


def main() -> None:
    """Write the page."""
    found = json.loads((page.RESULTS / "pipeline.json").read_bytes())
    profile = json.loads((page.RESULTS / "host_profile.json").read_bytes())
    tree = params.load(Path("params.yaml"))
    parts = [
        "# Scaling beyond one machine",
        "",
        *wrap(
            "Written by `python -m benchmarks.scaling`: computed from measurements, not measured. Many runs go to a "
            "Prefect work pool, one run over many GPUs to [torchrun](agent.md#several-processes)."
        ),
        "",
        *study(found, tree.train.iterations),
        "",
        *one_gpu(profile, "reference"),
        "",
        *crowd(found, CASES["default"], tree.train.middle_episode),
    ]
    durable.replace_file(PAGE, ("\n".join(parts) + "\n").encode())
    print(PAGE)


if __name__ == "__main__":
    main()
