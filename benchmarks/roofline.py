"""Hold an epoch of the default hosts, with each blueprint, beside the limits of this machine.

    python -m benchmarks.roofline [--hosts 512] [--repeats 7] [--out FILE.json]

An epoch is 8 minibatches of 48 rows and a validation on 256 rows, with and without the seed. Its floating-point
operations are those of matrix products, counted where torch makes them. Its bytes are those that no cache can save:
the rows that a host is shown, and its parameters and moments, read and written once. The limits are one product of
large matrices and one copy of a large array, in the same process, one thread. Times are CPU seconds, medians.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import page
from simic import params
from simic.data.batches import Dataset
from simic.envs.attribution import switched_off
from simic.growth.batch.forward import Backend
from simic.growth.batch.groups import SlotState
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.training import machine

RESULT = Path(".simic/roofline.json")
COLUMNS = 12
ROWS = {"train": 2048, "val": 256}
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "baddbmm_")
LARGE = 2048  # side of the large matrices


class Work(TorchDispatchMode):
    """Count the operations of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [item for item in tree_leaves(args) if isinstance(item, torch.Tensor)]
        if func.overloadpacket.__name__ in PRODUCTS:
            self.flops += 2 * result.numel() * inputs[-1].shape[-2]
        return result


def tables(rows: int, tasks: int, split: Any) -> Dataset:
    """Draw tables of two classes by the sign of a product."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(tasks * rows, 1, 1, COLUMNS, generator=draw)
    y = (x[:, 0, 0, 0] * x[:, 0, 0, 1] > 0).long()
    return Dataset(x, y, 6, (2,) * tasks, split)


@dataclass(frozen=True)
class Phase:
    """A training epoch or a validation, and the bytes that it moves at least."""

    work: Callable[[], object]
    bytes: int


def epochs(train: params.Train, hosts: int, kind: int | None, backend: Backend) -> dict[str, Phase]:
    """Make a population with one blueprint everywhere, at full amplitude; give its epoch and its validation."""
    data = {split: tables(rows, hosts, split) for split, rows in ROWS.items()}
    host = build_host(
        train.host,
        data["train"].shape,
        data["train"].classes,
    )
    population = Population(
        host,
        blueprints_of("tables"),
        torch.arange(hosts),
        rng_seed=1,
        optimizer=train.host_optimizer,
        backend=backend,
    )
    population.reset(0, torch.arange(hosts))
    slots = Slots.empty(hosts, 1)
    if kind is not None:
        slots = replace(
            slots,
            stage=torch.full_like(slots.stage, int(Stage.BLENDING)),
            blueprint=torch.full_like(slots.blueprint, kind),
            alpha=torch.ones_like(slots.alpha),
        )
    population.germinate(slots, slots.stage > 0, data["train"])
    state = SlotState.read(slots)
    off = switched_off(state.acting, state.stage == Stage.FOSSILIZED)
    order = torch.stack([torch.randperm(ROWS["train"])[: 8 * 48] for _ in range(hosts)])
    order = (order + torch.arange(hosts)[:, None] * ROWS["train"]).view(hosts, 8, 48)
    # What no cache can save: rows, and numbers of hosts and seeds.
    stores = [store for name, store in population._stores.items() if not name.startswith("gate")]
    # An epoch reads and writes all of them, a validation reads the parameters.
    params = sum(store.param.nbytes for store in stores)
    all_numbers = sum(tensor.nbytes for store in stores for tensor in store.tensors.values())
    row = data["val"].x[0].nbytes + data["val"].y[0].nbytes
    return {
        "train": Phase(
            work=lambda: population.train_epoch(slots, data["train"], order, state),
            bytes=2 * all_numbers + order.nbytes + order.numel() * row,
        ),
        "validate": Phase(
            work=lambda: population.evaluate(slots, data["val"], off, state),
            bytes=params + data["val"].y.numel() * row,
        ),
    }


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Measure the median CPU time of some work, after one call that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times)


def limits(repeats: int) -> dict[str, float]:
    """Measure the matrix peak in GFLOP/s and the bandwidth of a copy in GB/s."""
    matrix = torch.randn(LARGE, LARGE)
    array = torch.empty(2**26)
    copy = torch.empty_like(array)
    return {
        "gflops": 2e-9 * LARGE**3 / seconds(lambda: matrix @ matrix, repeats),
        "gbytes": 2e-9 * array.nbytes / seconds(lambda: copy.copy_(array), repeats),
    }


def lines(report: dict[str, Any]) -> list[str]:
    """Make a table of an epoch with its validation, by module."""
    limits = report["limits"]
    sums: dict[str, list[float]] = {}
    for row in report["rows"]:
        earlier = sums.setdefault(row["module"], [0.0, 0.0, 0.0])
        measured = (row["milliseconds"], row["mflop"], row["mbyte"])
        sums[row["module"]] = [
            before + more for before, more in zip(earlier, measured, strict=True)
        ]
    head = ("module", "ms", "MFLOP", "of the peak", "MB")
    rows = [
        (
            name,
            f"{milliseconds:.2f}",
            f"{mflop:.1f}",
            f"{100 * mflop / milliseconds / limits['gflops']:.0f} %",
            f"{mbyte:.2f}",
        )
        for name, (milliseconds, mflop, mbyte) in sums.items()
    ]
    peaks = f"peak {limits['gflops']:.0f} GFLOP/s, copy {limits['gbytes']:.0f} GB/s"
    return [f"{report['hosts']} hosts, {peaks}", "", *page.table(head, rows)]


def main(arguments: list[str] | None = None) -> None:
    parser = page.parser(__doc__, RESULT)
    parser.add_argument(
        "--hosts",
        type=int,
        default=512,
    )
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    tree = params.load(Path("params.yaml"), ["runtime.device=cpu", "runtime.threads=1"])
    machine.configure(tree.runtime)
    names = ["none", *(blueprint.name for blueprint in blueprints_of("tables"))]
    rows = []
    for number, name in enumerate(names):
        kind = number - 1 if number else None
        plain = epochs(tree.train, options.hosts, kind, "vmap")
        for name_of_phase, phase in epochs(tree.train, options.hosts, kind, "auto").items():
            with Work() as counted:
                plain[name_of_phase].work()
            rows.append(
                {
                    "module": name,
                    "phase": name_of_phase,
                    "milliseconds": 1e3 * seconds(phase.work, options.repeats) / options.hosts,
                    "mflop": 1e-6 * counted.flops / options.hosts,
                    "mbyte": 1e-6 * phase.bytes / options.hosts,
                }
            )
            print(rows[-1], flush=True)
    report = {"hosts": options.hosts, "limits": limits(options.repeats), "rows": rows}
    page.write_result(options.out, report)
    print(*lines(report), sep="\n")


if __name__ == "__main__":
    main()
