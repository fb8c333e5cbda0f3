"""What it costs to be able to resume: a checkpoint and telemetry after every iteration, inside one training process.

    python -m benchmarks.checkpointing [--iterations 4] [--out benchmarks/results/checkpointing.json] [-S KEY=VALUE]

The default training, or its first iterations. Everything that is done so that a killed run can go on is timed as it is
called, in wall time, which includes waiting for the disk, and in processor time: the session's save, the telemetry of
the iteration, and the link of the hash chain. The goal is at most 3 % of training.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import page
from simic import params
from simic.data.prepare import prepare
from simic.telemetry.recorder import Recorder
from simic.training import trainer
from simic.training.checkpoint import CheckpointStore
from simic.training.session import Session, open_session
from simic.training.state import TrainState

GOAL = 0.03
WATCHED = {
    "save": (Session, "save"),  # with all of the next
    "write": (CheckpointStore, "write"),
    "telemetry": (Recorder, "write"),
    "times": (Recorder, "time"),
    "chain": (TrainState, "link"),
}
APART = ("save", "telemetry", "times", "chain")  # none is called inside another


class Meter:
    """Wall and processor seconds of calls, by name."""

    def __init__(self) -> None:
        self.wall = dict.fromkeys(WATCHED, 0.0)
        self.cpu = dict.fromkeys(WATCHED, 0.0)
        self.calls = dict.fromkeys(WATCHED, 0)
        self._undo: list[tuple[type, str, Any]] = []

    def __enter__(self) -> "Meter":
        for name, (owner, method) in WATCHED.items():
            call = getattr(owner, method)
            self._undo.append((owner, method, call))
            setattr(owner, method, self.timed(name, call))
        return self

    def __exit__(self, *_: object) -> None:
        for owner, method, call in self._undo:
            setattr(owner, method, call)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, counted under that name."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.wall[name] += time.perf_counter() - wall
                self.cpu[name] += time.process_time() - cpu
                self.calls[name] += 1

        return counted


def measure(tree: params.Params) -> dict[str, Any]:
    """Seconds by part, and all of them as shares of training."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(tree.prepare, tree.rng_seed, folder / "prepared", folder)
        with open_session(tree, folder / "work", folder / "prepared") as session, Meter() as meter:
            wall, cpu = time.perf_counter(), time.process_time()
            trainer.train(session)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            kept = session.checkpoints.path(tree.train.iterations)
            size = sum(file.stat().st_size for file in kept.iterdir())
    return {
        "iterations": tree.train.iterations,
        "envs": tree.train.envs,
        "episode_steps": tree.train.episode_steps,
        "checkpoint_bytes": size,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "calls": meter.calls,
        "wall": meter.wall,
        "cpu": meter.cpu,
        "wall_share": sum(meter.wall[name] for name in APART) / wall,
        "cpu_share": sum(meter.cpu[name] for name in APART) / cpu,
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--out", type=Path, default=page.RESULTS / "checkpointing.json")
    parser.add_argument("-S", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    # One process: so its processor time is that of all hosts.
    changes = [f"train.iterations={given.iterations}", "runtime.processes=1", *given.overrides]
    found = measure(params.load(Path("params.yaml"), changes))
    page.write_result(given.out, {"overrides": given.overrides} | found)
    print(f"wall {found['wall_share']:.2%}, processor {found['cpu_share']:.2%} of training; goal {GOAL:.0%}")


if __name__ == "__main__":
    main()
