"""How fast hosts train and are validated: every family, number of hosts and backend beside plain loops over modules.

    python -m benchmarks.population [--cases reference ...] [--envs 1 8 32 64] [--repeats 5] [--device cuda]

Training: seconds of a minibatch of E hosts, without seeds beside the same hosts as plain torch modules with torch.optim
(contiguous and channels-last; of convolutions also these alone), and with seeds of every blueprint, stage, operator.
All variants of a row are timed in turns, medians, with each number of threads; each side of a ratio has its best one,
and the ratio at one thread each stands beside it. Phases, on one thread: one real rollout of the policy and its update,
reference case. Limits of the machine are measured in the same run: the fastest matrix product and the fastest copy.
Every part is kept when it is done; the same command goes on from there.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import page
from benchmarks.clock import Clock, in_turns
from simic import params
from simic.agent.health import Health
from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO, with_advantages
from simic.agent.rollout import collect
from simic.data.batches import Dataset
from simic.envs.attribution import configurations
from simic.envs.growth_env import GrowthEnv
from simic.growth.batch.forward import BACKENDS
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Blend, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import HostSpec, build_host
from simic.params import Host, HostOptimizer
from simic.training import machine
from simic.training.sharing import cores

RESULT = Path("benchmarks/results/population.json")
TIMED_BATCHES = 3  # of an epoch: its cost is that of its minibatches
CLASSES = 10
WARM_UP = 3  # steps


@dataclass(frozen=True)
class Case:
    """A host, the shape of its samples, and how many it sees in an epoch and in a validation."""

    host: Host
    shape: tuple[int, ...]
    training: int
    validation: int
    batch: int

    @property
    def batches(self) -> int:
        """Of an epoch."""
        return self.training // self.batch

    def build(self) -> HostSpec:
        return build_host(self.host, self.shape, CLASSES)

    def data(self, samples: int, device: torch.device) -> Dataset:
        """Noise: speed does not depend on what is learned."""
        draw = torch.Generator().manual_seed(1)
        if self.host.family == "transformer":
            x = torch.randint(CLASSES, (samples, *self.shape), generator=draw)
            return Dataset(x.to(device), x.roll(-1, 1).to(device), CLASSES)
        x, y = torch.randn(samples, *self.shape, generator=draw), torch.randint(CLASSES, (samples,), generator=draw)
        return Dataset(x.to(device), y.to(device), CLASSES)


CASES = {
    "reference": Case(Host(family="cnn", preset="baseline", widths=(16, 32, 64)), (3, 16, 16), 1536, 384, 128),
    "small": Case(Host(family="cnn", preset="baseline"), (1, 8, 8), 1088, 360, 64),
    "default": Case(Host(family="cnn", preset="impaired"), (1, 8, 8), 1088, 360, 64),
    "mlp": Case(Host(family="mlp", preset="baseline"), (1, 8, 8), 1088, 360, 64),
    "transformer": Case(Host(family="transformer", preset="baseline"), (32,), 512, 128, 32),
}
PHASED = "reference"


# --- what is timed ---


def ours(case: Case, envs: int, backend: str, device: torch.device, seeds: bool) -> Callable[[], object]:
    """Some minibatches of a population."""
    population = build(case, envs, backend, device)
    slots = mixed(population) if seeds else Slots.empty(envs, population.host.slots, device)
    data, order = case.data(case.training, device), orders(case, envs, device)
    return lambda: population.train_epoch(slots, data, order)


def build(case: Case, envs: int, backend: str, device: torch.device) -> Population:
    kinds = tuple(kind for kind in blueprints_of(case.host.family) if kind.unavailable(device) is None)
    ids = torch.arange(envs)
    population = Population(case.build(), kinds, ids, 1, HostOptimizer(learning_rate=1e-3), device, backend)
    population.reset(0)
    return population


def orders(case: Case, envs: int, device: torch.device) -> Tensor:
    """Sample indices ``[E, n, B]``, other ones for each host."""
    draw = torch.Generator().manual_seed(2)
    return torch.randint(case.training, (envs, TIMED_BATCHES, case.batch), generator=draw).to(device)


def mixed(population: Population) -> Slots:
    """Seeds in two of three slots: every blueprint, operator and stage from TRAINING on, as an episode has them."""
    draw, device = torch.Generator().manual_seed(3), population.device
    shape = (len(population), population.host.slots)
    live = torch.rand(shape, generator=draw) < 2 / 3
    stage = torch.where(live, torch.randint(Stage.TRAINING, Stage.FOSSILIZED + 1, shape, generator=draw), 0)
    kind = torch.where(live, torch.randint(len(population.blueprints), shape, generator=draw), -1)
    operator = torch.where(live, torch.randint(len(Blend), shape, generator=draw), 0)
    alpha = torch.where(stage == Stage.BLENDING, 0.5, (stage > Stage.BLENDING).float())
    slots = replace(
        Slots.empty(*shape, device),
        stage=stage.to(device),
        blueprint=kind.to(device),
        operator=operator.to(device),
        alpha=alpha.to(device),
        germinations=live.long().to(device),
    )
    population.germinate(slots, live.to(device))
    return slots


def plain(case: Case, envs: int, device: torch.device, memory: torch.memory_format) -> Callable[[], object]:
    """The same minibatches of E plain networks, one after the other, as anyone would write it."""
    networks = [nn.Sequential(*segments, head) for segments, head in (case.build().modules() for _ in range(envs))]
    images = len(case.shape) == 3
    networks = [
        network.to(device=device, memory_format=memory) if images else network.to(device)  # pyright: ignore[reportCallIssue]
        for network in networks
    ]
    optimizers = [torch.optim.SGD(network.parameters(), 1e-3, momentum=0.9) for network in networks]
    data, order = case.data(case.training, device), orders(case, envs, device)

    def work() -> None:
        for network, optimizer, batches in zip(networks, optimizers, order, strict=True):
            for rows in batches:
                x = data.x[rows].contiguous(memory_format=memory) if images else data.x[rows]
                loss = F.cross_entropy(network(x).flatten(0, -2), data.y[rows].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return work


def convolutions(case: Case, envs: int, device: torch.device) -> Callable[[], object]:
    """Forward and backward of a host's convolutions alone, channels-last, for as many minibatches."""
    layers, shape, todo = [module for part in case.build().modules()[0] for module in part.modules()], case.shape, []
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            x = torch.randn(case.batch, *shape, device=device).contiguous(memory_format=torch.channels_last)
            layer = layer.to(device=device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            y = layer(x)
            todo.append((layer, x.requires_grad_(bool(len(todo))), torch.ones_like(y)))
            shape = tuple(y.shape[1:])
        elif isinstance(layer, nn.MaxPool2d):
            shape = (shape[0], shape[1] // 2, shape[2] // 2)

    def work() -> None:
        for _ in range(envs * TIMED_BATCHES):
            for layer, x, grad in todo:
                torch.autograd.grad(layer(x), [t for t in (x, layer.weight) if t.requires_grad], grad)

    return work


def validation(case: Case, envs: int, backend: str, device: torch.device) -> Callable[[], object]:
    """All configurations of the same mix of seeds on the validation samples."""
    population = build(case, envs, backend, device)
    slots, data = mixed(population), case.data(case.validation, device)
    off = configurations(slots)
    return lambda: population.evaluate(slots, data, off)


# --- timing ---


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def limits(device: torch.device) -> dict[str, float]:
    """Fastest float32 matrix product (GFLOP/s) and copy (GB/s) that this machine was seen to do."""
    side, size = (2048, 2**26) if device.type == "cpu" else (8192, 2**30)
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    source = torch.ones(size, device=device)
    target = torch.empty_like(source)
    seconds = [_fastest(lambda: torch.mm(a, b), device), _fastest(lambda: target.copy_(source), device)]
    return {"gflops": 2 * side**3 / seconds[0] / 1e9, "gigabytes_per_second": 2 * 4 * size / seconds[1] / 1e9}


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    return min(in_turns({"": work}, 1, device)[""] for _ in range(8))


def row(name: str, envs: int, repeats: int, device: torch.device, threads: list[int]) -> dict[str, Any]:
    """One case and number of hosts; times are seconds of one minibatch of all hosts; ``threads`` begin with 1."""
    case = CASES[name]
    work = {"plain": plain(case, envs, device, torch.contiguous_format)}
    if case.host.family == "cnn":
        work["plain channels-last"] = plain(case, envs, device, torch.channels_last)
        work["convolutions alone"] = convolutions(case, envs, device)
    for backend in BACKENDS:
        work[backend] = ours(case, envs, backend, device, seeds=False)
        work[f"{backend} with seeds"] = ours(case, envs, backend, device, seeds=True)
    checks = {backend: validation(case, envs, backend, device) for backend in BACKENDS}
    times = {count: timed(work, repeats, device, count) for count in threads}
    training = {key: min(each[key] for each in times.values()) for key in work}
    host = case.build()
    found = {
        "case": name,
        "envs": envs,
        "training_seconds": training,
        "one_thread_seconds": times[1],
        "best_threads": {key: min(times, key=lambda count: times[count][key]) for key in work},
        "validation_seconds": in_turns(checks, repeats, device),
        "speedup": over_plain(training),
        "one_thread_speedup": over_plain(times[1]),
        "gflop": 3 * host.flops_per_sample * case.batch * envs / 1e9,  # backward is twice the forward
    }
    del work, checks
    gc.collect()
    if device.type == "cuda":
        found["peak_bytes"] = peak(case, envs, device)
    return found


def timed(work: dict[str, Callable[[], object]], repeats: int, device: torch.device, threads: int) -> dict[str, float]:
    """Seconds of a minibatch of each variant, with so many threads."""
    torch.set_num_threads(threads)
    try:
        return {key: value / TIMED_BATCHES for key, value in in_turns(work, repeats, device).items()}
    finally:
        torch.set_num_threads(1)


def over_plain(seconds: dict[str, float]) -> dict[str, float]:
    """How many times as fast as the faster plain loop each backend trains hosts without seeds."""
    best = min(value for key, value in seconds.items() if key.startswith("plain"))
    return {backend: best / seconds[backend] for backend in BACKENDS}


def peak(case: Case, envs: int, device: torch.device) -> int:
    """Most memory that the hosts with their seeds, training, ever held."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    ours(case, envs, "auto", device, seeds=True)()
    return torch.cuda.max_memory_allocated(device)


# --- phases of a real iteration ---


def phases(name: str, envs: int, device: torch.device, steps: int, seeds: bool) -> dict[str, Any]:
    """One rollout and update, after a short one that does not count: seconds by phase, decisions and host samples per
    second; ``seeds`` as the untrained policy has them, or none; and seconds of an epoch of one plain host, before and
    after. Telemetry, checkpoints and tracking are in benchmarks.pipeline.
    """
    case = CASES[name]
    train = params.Train(
        host=case.host,
        envs=envs,
        episode_steps=steps,
        batch_size=case.batch,
        lifecycle=params.Lifecycle() if seeds else params.Lifecycle(param_budget=1e-9),  # no seed is that small
        policy=params.Policy(core_units=128),
        ppo=params.PPOParams(minibatches=min(4, envs)),
    )
    training, checked = case.data(case.training, device), case.data(case.validation, device)
    env = GrowthEnv(train, 1, training, checked, device=device)
    policy = ActorCritic(env.action_spec, env.observation_spec, train.policy, 1).to(device)
    learner, population, clock = (
        PPO(policy, train.ppo, 1, total_updates=2),
        env.population,
        Clock(lambda: wait(device)),
    )
    bare = plain(case, 1, device, torch.channels_last)
    epochs = [plain_epoch(case, bare, device)]
    started = collected = ended = 0.0
    for iteration in range(2):
        if iteration:
            clock.watch(population, "train_epoch", "host training")
            clock.watch(population, "evaluate", "validation with ablations")
            clock.watch(population, "snapshot", "snapshots")
            clock.watch(policy, "act", "policy")
        wait(device)
        started = time.perf_counter()
        rollout, _ = collect(env, policy, Normalizers(), iteration, 1, steps if iteration else min(steps, WARM_UP))
        rollout = with_advantages(rollout, rollout.rewards, train.ppo.gamma, train.ppo.gae_lambda)
        wait(device)
        collected = time.perf_counter()
        learner.update(rollout, iteration, Health(learner))
        wait(device)
        ended = time.perf_counter()
    epochs.append(plain_epoch(case, bare, device))
    seconds = {**clock.seconds, "PPO update": ended - collected}
    seconds["everything else of a step"] = ended - started - sum(seconds.values())
    return {
        "case": name,
        "envs": envs,
        "seeds": seeds,
        "steps": steps,
        "seconds": seconds,
        "total_seconds": ended - started,
        "plain_epoch_seconds": mean(epochs),
        "decisions_per_second": envs * steps / (ended - started),
        "host_samples_per_second": envs * steps * case.batches * case.batch / (ended - started),
    }


def plain_epoch(case: Case, bare: Callable[[], object], device: torch.device) -> float:
    """Seconds of an epoch of one plain host, channels-last."""
    return in_turns({"": bare}, 5, device)[""] * case.batches / TIMED_BATCHES


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--phases", type=int, nargs="*", default=[1, 16], help="hosts of the iterations")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=25, help="of the iteration whose phases are timed")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the file")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    device = machine.configure(params.Runtime(device=given.device, threads=1))
    threads = sorted({1, cores()}) if given.device == "cpu" else [1]
    record = Record(given.out, {"device": _name(device), "threads": threads}, given.fresh)
    record.limits(limits(device))
    for name, envs in product(given.cases, given.envs):
        record.add("rows", partial(row, name, envs, given.repeats, device, threads), case=name, envs=envs)
    for envs, seeds in product(given.phases, (False, True)):
        record.add("phases", partial(phases, PHASED, envs, device, given.steps, seeds), envs=envs, seeds=seeds)
    print(page.text(page.DETAILS, {"population": json.loads(given.out.read_bytes())}))


class Record:
    """What was measured so far, written after every part of it: a benchmark that was stopped goes on where it was."""

    def __init__(self, path: Path, setting: dict[str, Any], fresh: bool) -> None:
        self.path, self.found = path, setting | {"limits": {}, "rows": [], "phases": []}
        if path.exists() and not fresh:
            kept = json.loads(path.read_bytes())
            if setting != {name: kept[name] for name in setting}:
                raise SystemExit(f"{path}: holds another device or number of threads than {setting}; --fresh, or --out")
            self.found = kept

    def limits(self, seen: dict[str, float]) -> None:
        """The fastest ever seen here."""
        before = self.found["limits"]
        self.found["limits"] = {name: max(value, before.get(name, 0.0)) for name, value in seen.items()}

    def add(self, part: str, measure: Callable[[], dict[str, Any]], **key: Any) -> None:
        """Measure and keep what has this key, unless it is there."""
        if any(key.items() <= each.items() for each in self.found[part]):
            return
        measured = measure() | {"revision": page.provenance()["revision"]}
        print(measured, flush=True)
        self.found[part] = sorted(
            [*self.found[part], measured], key=lambda each: (list(CASES).index(each["case"]), each["envs"])
        )
        page.write_result(self.path, {name: value for name, value in self.found.items() if name != "provenance"})


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    main()
