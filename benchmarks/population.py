"""Time the training of hosts: every family, number of hosts and backend beside plain loops over modules.

    python -m benchmarks.population [--cases reference ...] [--envs 1 8 32 64] [--repeats 5] [--device cuda]

Training: seconds of a minibatch of E hosts, without seeds beside the same hosts as plain torch modules with torch.optim
(contiguous and channels-last), and with seeds of every blueprint, stage and operator. All variants of a row are timed
in turns, medians, with each number of threads; each side of a ratio has its best one. Every row is kept when it is
done; the same command goes on from there.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import page
from simic import params
from simic.data.batches import Dataset
from simic.growth.batch.forward import Backend
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Blend, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import HostSpec, build_host
from simic.params import Host, HostOptimizer
from simic.training import machine
from simic.training.worker_layout import cores

RESULT = Path(".simic/population.json")
TIMED_BATCHES = 3  # of an epoch: its cost is that of its minibatches
CLASSES = 10


@dataclass(frozen=True)
class Case:
    """A host, the shape of its samples, and how many it trains on."""

    host: Host
    shape: tuple[int, ...]
    training: int
    batch: int
    optimizer: Literal["sgd", "adamw"] = "sgd"

    def build(self) -> HostSpec:
        return build_host(self.host, self.shape, CLASSES)

    def data(self, device: torch.device) -> Dataset:
        """Draw noise: speed does not depend on what is learned."""
        # Of one seed, so that both sides train on the same noise.
        draw = torch.Generator().manual_seed(1)
        shape = (self.training, *self.shape)
        if self.host.family == "transformer":
            x = torch.randint(CLASSES, shape, generator=draw)
            # As language models learn: the next token.
            y = x.roll(-1, 1)
        else:
            x = torch.randn(shape, generator=draw)
            y = torch.randint(CLASSES, shape[:1], generator=draw)
        return Dataset(x.to(device), y.to(device), CLASSES)


CASES = {
    "reference": Case(
        Host(family="cnn", preset="baseline", widths=(16, 32, 64)), (3, 16, 16), 1536, 128
    ),
    "small": Case(Host(family="cnn", preset="baseline"), (1, 8, 8), 1088, 64),
    "default": Case(Host(family="cnn", preset="impaired"), (1, 8, 8), 1088, 64),
    "mlp": Case(Host(family="mlp", preset="baseline"), (1, 8, 8), 1088, 64),
    "transformer": Case(Host(family="transformer", preset="baseline"), (32,), 512, 32),
    "tables": Case(Host(family="tables", preset="baseline"), (1, 1, 12), 2048, 48, "adamw"),
}


# --- what is timed ---


def ours(
    case: Case, envs: int, backend: Backend, device: torch.device, seeds: bool
) -> Callable[[], object]:
    """Prepare a few minibatches of a population, to be timed.

    Args:
        case: the host, and how it trains.
        envs: how many hosts.
        backend: of the population.
        device: where to compute.
        seeds: whether seeds of every kind grow.
    """
    kinds = blueprints_of(case.host.family)
    ids = torch.arange(envs)
    optimizer = HostOptimizer(name=case.optimizer, learning_rate=1e-3)
    population = Population(case.build(), kinds, ids, 1, optimizer, device, backend)
    population.reset(0)
    data = case.data(device)
    # The orders that plain networks have, too.
    order = orders(case, envs, device)
    slots = mixed(population, data) if seeds else Slots.empty(envs, population.host.slots, device)
    return lambda: population.train_epoch(slots, data, order)


def orders(case: Case, envs: int, device: torch.device) -> Tensor:
    """Draw sample indices ``[E, n, B]``, other ones for each host.

    Args:
        case: how many samples there are, and in a minibatch.
        envs: how many hosts, E.
        device: where they are.
    """
    draw = torch.Generator().manual_seed(2)
    return torch.randint(case.training, (envs, TIMED_BATCHES, case.batch), generator=draw).to(
        device
    )


def mixed(population: Population, data: Dataset) -> Slots:
    """Germinate seeds in two of three slots, of every blueprint, operator and stage from TRAINING on."""
    # On the CPU, since generators of devices differ.
    draw = torch.Generator().manual_seed(3)
    device = population.device
    shape = (len(population), population.host.slots)
    live = torch.rand(shape, generator=draw) < 2 / 3
    stage = torch.where(
        live, torch.randint(Stage.TRAINING, Stage.FOSSILIZED + 1, shape, generator=draw), 0
    )
    kind = torch.where(live, torch.randint(len(population.blueprints), shape, generator=draw), -1)
    operator = torch.where(live, torch.randint(len(Blend), shape, generator=draw), 0)
    # As in a lifecycle: none before BLENDING, half of it there, all of it later.
    alpha = torch.where(stage == Stage.BLENDING, 0.5, (stage > Stage.BLENDING).float())
    values = {
        "stage": stage,
        "blueprint": kind,
        "operator": operator,
        "alpha": alpha,
        "germinations": live.long(),
    }
    slots = replace(
        Slots.empty(*shape, device), **{name: value.to(device) for name, value in values.items()}
    )
    population.germinate(slots, live.to(device), data)
    return slots


def plain(
    case: Case, envs: int, device: torch.device, memory: torch.memory_format
) -> Callable[[], object]:
    """Prepare the same minibatches of plain networks, one after the other, as anyone would write it.

    Args:
        case: the host, and how it trains.
        envs: how many networks.
        device: where to compute.
        memory: layout of images.
    """
    images = len(case.shape) == 3
    networks = list[nn.Module]()
    optimizers = list[torch.optim.Optimizer]()
    for _ in range(envs):
        segments, head = case.build().modules()
        network = nn.Sequential(*segments, head).to(device)
        networks.append(network.to(memory_format=memory) if images else network)  # pyright: ignore[reportCallIssue]
        sgd = case.optimizer == "sgd"
        weights = network.parameters()
        optimizers.append(
            torch.optim.SGD(weights, 1e-3, 0.9)
            if sgd
            else torch.optim.AdamW(weights, 1e-3, fused=True)
        )
    data = case.data(device)
    order = orders(case, envs, device)

    def work() -> None:
        for network, optimizer, batches in zip(networks, optimizers, order, strict=True):
            for rows in batches:
                x = data.x[rows].contiguous(memory_format=memory) if images else data.x[rows]
                loss = F.cross_entropy(network(x).flatten(0, -2), data.y[rows].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return work


# --- timing ---


def in_turns(
    work: dict[str, Callable[[], object]], repeats: int, device: torch.device
) -> dict[str, float]:
    """Time each in turns, A B A B …, after one turn that does not count; the medians, in seconds.

    Args:
        work: what is timed, by name.
        repeats: turns that count.
        device: is waited for.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, go in work.items():
            started = time.perf_counter()
            go()
            # Work of a GPU goes on behind the call.
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            # The first turn warms caches and allocators.
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: median(times) for name, times in seconds.items()}


def row(
    name: str, envs: int, repeats: int, device: torch.device, threads: list[int]
) -> dict[str, Any]:
    """Measure one case and number of hosts: seconds of one minibatch of all hosts.

    Args:
        name: of the case.
        envs: how many hosts.
        repeats: turns that count.
        device: where to compute.
        threads: numbers of threads, of which the first is 1.
    """
    # All is made before anything is timed, as it is timed in turns.
    case = CASES[name]
    work = {"plain": plain(case, envs, device, torch.contiguous_format)}
    if case.host.family == "cnn":
        work["plain channels-last"] = plain(case, envs, device, torch.channels_last)
    for backend in get_args(Backend):
        work[backend] = ours(case, envs, backend, device, seeds=False)
        work[f"{backend} with seeds"] = ours(case, envs, backend, device, seeds=True)
    times = {}
    for count in threads:
        torch.set_num_threads(count)
        times[count] = {
            key: value / TIMED_BATCHES for key, value in in_turns(work, repeats, device).items()
        }
    torch.set_num_threads(1)
    # Each at the number of threads that suits it best.
    training = {key: min(timing[key] for timing in times.values()) for key in work}
    best = min(value for key, value in training.items() if key.startswith("plain"))
    return {
        "case": name,
        "envs": envs,
        "training_seconds": training,
        "one_thread_seconds": times[1],
        "speedup": {backend: best / training[backend] for backend in get_args(Backend)},
    }


def main() -> None:
    parser = page.parser(__doc__, RESULT)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    device = machine.configure(params.Runtime(device=options.device, threads=1))
    threads = sorted({1, cores()}) if options.device == "cpu" else [1]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    setting: dict[str, Any] = {"device": name, "threads": threads}
    report = (
        json.loads(options.out.read_bytes()) if options.out.exists() else setting | {"rows": []}
    )
    # Rows of two machines in one file would be compared.
    if setting != {key: report[key] for key in setting}:
        parser.error(
            f"{options.out}: holds another device or number of threads than {setting}; name another with --out"
        )
    for case, envs in product(options.cases, options.envs):
        if any((row["case"], row["envs"]) == (case, envs) for row in report["rows"]):
            continue
        measured = row(case, envs, options.repeats, device, threads) | {
            "revision": page.provenance()["revision"]
        }
        print(measured, flush=True)
        rows = [*report["rows"], measured]
        report["rows"] = sorted(rows, key=lambda row: (list(CASES).index(row["case"]), row["envs"]))
        page.write_result(options.out, report)


if __name__ == "__main__":
    main()
