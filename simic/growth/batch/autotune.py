"""Measures on this machine where one way of an operation becomes faster than the other, and writes the table of it.

Two questions: from which size of their maps do hosts run faster one by one, and up to how many entries is a small
convolution faster as one dense matrix. Each is asked of a range of sizes, both ways in turns; the threshold is
the one under which all sizes together would have taken the least time.
"""

import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from simic import durable
from simic.growth.batch.forward import Backend, Templates, Weights, batched, loop
from simic.growth.batch.groups import Plan
from simic.growth.batch.kernels import stacked
from simic.growth.batch.thresholds import SHIPPED, Thresholds, ThresholdTable
from simic.growth.networks.hosts import build_host
from simic.params import Host

ROWS, BATCH, CLASSES, REPEATS = 8, 64, 10, 5
# Channels in, widths and side of the maps: below, around and far above where the thresholds are expected to cross.
HOSTS = (
    (1, (8, 16, 32), 8),
    (1, (16, 32, 64), 8),
    (1, (8, 16, 32), 16),
    (1, (32, 64, 64), 8),
    (1, (8, 16, 32), 20),
    (1, (64, 64, 64), 8),
    (1, (8, 16, 32), 24),
    (1, (8, 16, 32), 28),
    (3, (8, 16, 32), 32),
    (3, (16, 32, 64), 32),
)
# Channels in and out and side of the maps.
CONVOLUTIONS = ((2, 2, 4), (4, 4, 4), (4, 8, 4), (8, 8, 4), (8, 16, 4), (16, 16, 4), (4, 4, 6), (8, 8, 6))
NEVER, ALWAYS = 0, 2**40


@dataclass(frozen=True)
class Trial:
    """One size: what the threshold looks at, and seconds either way."""

    name: str
    size: int
    below: float  # the way of sizes under the threshold
    above: float


def threshold(trials: Sequence[Trial]) -> int:
    """The size from which ``above`` is taken, such that all trials together take the least time."""

    def seconds(start: int) -> float:
        return sum(trial.above if trial.size >= start else trial.below for trial in trials)

    candidates = [*sorted({trial.size for trial in trials}), max(trial.size for trial in trials) + 1]
    return min(candidates, key=seconds)


def in_turns(work: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each, A B A B …, after one turn that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, go in work.items():
            started = time.perf_counter()
            go()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:
                taken[name].append(time.perf_counter() - started)
    return {name: median(times) for name, times in taken.items()}


def _values(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.linspace(-1, 1, math.prod(shape), device=device).view(shape).requires_grad_()


def apart_trials(device: torch.device) -> list[Trial]:
    """Hosts without seeds, forward and backward, all together and one by one."""
    trials = []
    for channels, widths, side in HOSTS:
        spec = build_host(Host(family="cnn", preset="baseline", widths=widths), (channels, side, side), CLASSES)
        templates = Templates.of(spec, ())
        plan = Plan((None,) * (spec.slots + 1), (None,) * spec.slots, (None,) * spec.slots)
        flat, x = _values((ROWS, spec.params), device), _values((ROWS, BATCH, side, side, channels), device)
        work: dict[str, Callable[[], object]] = {
            name: partial(_forward_and_backward, way, templates, plan, flat, x)
            for name, way in (("together", batched), ("apart", loop))
        }
        found = in_turns(work, REPEATS, device)
        name = f"{'-'.join(map(str, widths))} at {side}×{side}"
        trials.append(Trial(name, BATCH * templates.map_entries, found["together"], found["apart"]))
    return trials


def _forward_and_backward(way: Backend, templates: Templates, plan: Plan, flat: Tensor, x: Tensor) -> None:
    y = way(templates, Weights(templates.unpack_host(flat), {}, {}), plan, x)
    torch.autograd.grad(y.sum(), (flat, x))


def dense_trials(device: torch.device) -> list[Trial]:
    """A 3×3 convolution, forward and backward, as a dense matrix and as a grouped convolution."""
    trials = []
    for channels, width, side in CONVOLUTIONS:
        weight, x = (
            _values((ROWS, width, channels, 3, 3), device),
            _values((ROWS * BATCH, side, side, channels), device),
        )
        work: dict[str, Callable[[], object]] = {}
        for name, entries in (("dense", ALWAYS), ("grouped", NEVER)):
            thresholds = Thresholds(apart=None, dense_entries=entries)
            layer = stacked(nn.Conv2d(channels, width, 3, padding=1, bias=False, device="meta"), thresholds)
            assert layer is not None
            setattr(layer, "weight", weight)  # noqa: B010 - a plain attribute, unknown to type checkers

            def run(layer: nn.Module = layer, weight: Tensor = weight, x: Tensor = x) -> None:
                torch.autograd.grad(layer(x.permute(0, 3, 1, 2)).sum(), (weight, x))

            work[name] = run
        found = in_turns(work, REPEATS, device)
        entries = side**4 * channels * width
        trials.append(Trial(f"3×3 {channels}→{width} at {side}×{side}", entries, found["dense"], found["grouped"]))
    return trials


def measure(device: torch.device) -> ThresholdTable:
    """The table of this device, the measurements with it."""
    apart, dense = apart_trials(device), dense_trials(device)
    start = threshold(apart)
    thresholds = Thresholds(
        apart=start if start <= max(trial.size for trial in apart) else None,
        dense_entries=threshold(dense) - 1,
    )
    measured: list[dict[str, float | str]] = [
        {"question": question, "case": trial.name, "size": trial.size, first: trial.below, second: trial.above}
        for question, first, second, trials in (
            ("apart", "together_seconds", "apart_seconds", apart),
            ("dense", "dense_seconds", "grouped_seconds", dense),
        )
        for trial in trials
    ]
    machine = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }
    return ThresholdTable(thresholds={**SHIPPED, device.type: thresholds}, machine=machine, measured=measured)


def write(table: ThresholdTable, path: Path) -> None:
    """The file that ``runtime.backend`` may name, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(table.model_dump(), indent=2, ensure_ascii=False) + "\n"
    durable.replace_file(path, text.encode())
