"""How much slower a run is while MLflow is out of reach, and whether it trains the same.

    python -m benchmarks.outage [--iterations 60] [--out benchmarks/results/outage.json] [-S KEY=VALUE]

Runs of small hosts in one process, one after the other: with a sound store; with a store that another connection holds
locked, and with a port where nobody listens, each from the start to the end and for the middle third. The time inside
MLflow's observer is measured apart from the rest of the same run, in wall and processor time. *Slower* is that time,
less what it is with a sound store, over the time of the rest with a sound store: so what else the machine does
meanwhile counts little. The goal is at most 10 %. Everything happens in clones of the last commit.
"""

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import page
from benchmarks.pipeline import ONE_CORE, perform, workspace
from simic import seals
from simic.pipeline import mlflow_store
from simic.pipeline.mlflow_observer import MlflowObserver
from simic.pipeline.paths import Workspace
from simic.telemetry.columns import Columns
from simic.telemetry.rows import UpdateRow
from simic.training.observers import Observer

GOAL = 0.10
SMALL = [*ONE_CORE, "train.envs=12", "train.episode_steps=10"]
METHODS = ("on_start", "on_iteration", "on_checkpoint", "on_end", "publish")


@contextmanager
def locked(place: Workspace) -> Iterator[None]:
    """By another connection."""
    with closing(sqlite3.connect(place.root / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def dead_port(place: Workspace) -> Iterator[None]:
    """Connections are refused."""
    with patch.dict(os.environ, MLFLOW_TRACKING_URI="http://127.0.0.1:1"):
        yield


Outage = Callable[[Workspace], AbstractContextManager[None]]
OUTAGES: dict[str, Outage] = {"store locked": locked, "dead port": dead_port}


class Third(Observer):
    """The outage lasts for the middle third."""

    def __init__(self, outage: AbstractContextManager[None], iterations: int) -> None:
        self.outage, self.first, self.last = outage, iterations // 3, 2 * iterations // 3

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        if update.iteration == self.first:
            self.outage.__enter__()
        if update.iteration == self.last:
            self.outage.__exit__(None, None, None)


class Meter:
    """Wall and processor seconds inside MLflow's observer."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        timed: dict[str, Any] = {name: self._timed(getattr(MlflowObserver, name)) for name in METHODS}
        with patch.multiple(MlflowObserver, **timed):
            yield

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.wall += time.perf_counter() - wall
                self.cpu += time.process_time() - cpu

        return timed


def train(place: Workspace, outage: AbstractContextManager[None], observers: tuple[Observer, ...]) -> dict[str, Any]:
    """Seconds inside MLflow's observer and of the rest; what came out."""
    perform(place, "prepare")
    meter = Meter()
    with meter.watching(), outage:
        wall, cpu = time.perf_counter(), time.process_time()
        perform(place, "train", observers)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "mlflow": {"wall": meter.wall, "cpu": meter.cpu},
        "rest": {"wall": wall - meter.wall, "cpu": cpu - meter.cpu},
        "models_sha256": seals.content_hash(place.models),
    }


def measure(folder: Path, iterations: int, changes: list[str]) -> dict[str, Any]:
    """Every outage beside the run without one."""
    changes = [*SMALL, f"train.iterations={iterations}", *changes]
    connected = workspace(folder / "first", [*changes, "rng_seed=99"])  # a store with its tables
    train(connected, nullcontext(), ())
    client, experiment_id = mlflow_store.connect(connected)
    client.rename_experiment(experiment_id, "template")  # it keeps its files in that project
    store = (connected.root / "mlflow.db").read_bytes()

    def place(name: str) -> Workspace:
        found = workspace(folder / name.replace(" ", "-"), changes)
        (found.root / "mlflow.db").write_bytes(store)
        return found

    found = {"none": train(place("none"), nullcontext(), ())}
    for name, outage in OUTAGES.items():
        whole, third = place(f"{name} whole"), place(f"{name} third")
        found[f"{name}, whole run"] = train(whole, outage(whole), ())
        found[f"{name}, a third"] = train(third, nullcontext(), (Third(outage(third), iterations),))
    sound = found["none"]
    for run in found.values():
        run["slower"] = {
            clock: (run["mlflow"][clock] - sound["mlflow"][clock]) / (sound["rest"][clock] + sound["mlflow"][clock])
            for clock in ("wall", "cpu")
        }
    same = {run["models_sha256"] for run in found.values()} == {sound["models_sha256"]}
    return {"iterations": iterations, "runs": found, "same_models": same}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--out", type=Path, default=page.RESULTS / "outage.json")
    parser.add_argument("-S", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.iterations, given.overrides)
    page.write_result(given.out, {"overrides": given.overrides} | found)
    for name, run in found["runs"].items():
        slower, rest = run["slower"], run["rest"]["wall"]
        print(f"{name}: wall {slower['wall']:+.1%}, processor {slower['cpu']:+.1%} ({rest:.0f} s without MLflow)")
    print(f"same models: {found['same_models']}; goal {GOAL:.0%}")


if __name__ == "__main__":
    main()
