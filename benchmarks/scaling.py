"""Measure host trainings per core-second of the default run, by number of hosts and cores.

    python -m benchmarks.scaling [--hosts 256 1024 4096] [--cores 1 2] [--epochs 12] [--out FILE.json] [-S K=V]

Two iterations for each row, of which the second is timed: its episodes (hosts trained, validated and decided for) and
the PPO update that follows. Other work on the machine makes it slower: the load is recorded.
"""

import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import page
from simic import params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.telemetry import timing

RESULT = page.RESULTS / "scaling.json"


def settings(hosts: int, cores: int, epochs: int) -> list[str]:
    """List the overrides of a run of two iterations.

    Args:
        hosts: of an iteration.
        cores: that share them.
        epochs: of an episode.
    """
    return [
        f"train.envs={hosts}", f"train.episode_steps={epochs}", "train.iterations=2", "train.horizon=2",
        "train.validate_every=2", "runtime.device=cpu", f"runtime.cores={cores}", "runtime.threads=1",
        "runtime.progress=none",
    ]  # fmt: skip


def measure(tree: params.Params, prepared: Path) -> dict[str, Any]:
    """Train in a scratch folder, and measure one row: seconds of the second iteration, and the rate."""
    with tempfile.TemporaryDirectory() as folder:
        place = Workspace(Path(folder))
        place.prepared.parent.mkdir(parents=True, exist_ok=True)
        # They are only read, so a link will do.
        place.prepared.symlink_to(prepared.resolve())
        stages.train(tree, place)
        # The first iteration imports, allocates, and measures alignments.
        last = timing.read(place.telemetry / timing.TIMING_FILE)[-1]
    seconds = last.collect_seconds + last.update_seconds
    hosts = tree.train.envs
    cores = int(tree.runtime.cores)
    return {
        "hosts": hosts,
        "cores": cores,
        "seconds": seconds,
        "update_seconds": last.update_seconds,
        "trainings_per_core_second": hosts / seconds / cores,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = page.parser(__doc__, RESULT)
    parser.add_argument("--hosts", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--epochs", type=int, default=12, help="of an episode")
    parser.add_argument("-S", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    # All rows train on the same data, prepared once.
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Workspace(Path(folder))
        stages.prepare(params.load(Path("params.yaml"), options.overrides), data)
        for hosts, cores in product(options.hosts, options.cores):
            changes = [*settings(hosts, cores, options.epochs), *options.overrides]
            rows.append(measure(params.load(Path("params.yaml"), changes), data.prepared))
            print(f"{hosts} hosts, {cores} cores: {rows[-1]['seconds']:.1f} s", flush=True)
    report = {"epochs": options.epochs, "overrides": options.overrides, "rows": rows}
    page.write_result(options.out, report)
    print(*page.SECTIONS["scaling"](report), sep="\n")


if __name__ == "__main__":
    main()
