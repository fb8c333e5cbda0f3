"""Runs of seconds: their params, who watches them, and what it means that two are the same."""

import threading
from pathlib import Path

import pytest

from simic.params import Params, Policy, Runtime, Train
from simic.telemetry import recorder
from simic.training.checkpoint import read
from simic.training.interrupts import Interrupted
from simic.training.session import open_session
from simic.training.trainer import train

SIZES = {"encoder_units": 16, "core_units": 16, "head_units": 8, "embedding_units": 2}


def small_params(runtime: dict | None = None, **changes: object) -> Params:
    settings = {"envs": 4, "episode_steps": 3, "batches_per_epoch": 2, "iterations": 4, "validate_every": 2}
    settings |= {"policy": Policy(**SIZES), **changes}
    return Params(train=Train(**settings), runtime=Runtime(**{"threads": 1, "processes": 1, **(runtime or {})}))


def assert_same_run(work: Path, other: Path) -> None:
    """Every byte of checkpoints and telemetry; the timing log has the same iterations."""
    names = sorted(path.name for path in (other / "checkpoints").iterdir())
    assert sorted(path.name for path in (work / "checkpoints").iterdir()) == names
    for name in names:
        own, theirs = read(work / "checkpoints" / name), read(other / "checkpoints" / name)
        assert own.manifest == theirs.manifest
        assert own.tensors.keys() == theirs.tensors.keys()
        for key in own.tensors:
            assert own.tensors[key].numpy().tobytes() == theirs.tensors[key].numpy().tobytes(), key
        for file in ("state.safetensors", "manifest.json"):
            assert (own.path / file).read_bytes() == (theirs.path / file).read_bytes()
    assert (work / "telemetry.jsonl").read_bytes() == (other / "telemetry.jsonl").read_bytes()


def rows_of(work: Path, kind: type) -> list:
    return [row for row in recorder.read(work / "telemetry.jsonl") if isinstance(row, kind)]


class Watcher:
    """An observer that writes down what it is told and calls ``act`` after every step."""

    def __init__(self, act=lambda count: None):
        self.calls, self.findings, self.steps, self._act = [], [], 0, act

    def on_start(self, info):
        self.info = info
        self.calls.append("start")

    def on_step(self, row):
        self.steps += 1
        self.calls.append(("step", row.iteration, row.step))
        self._act(self.steps)

    def on_iteration(self, update, episode):
        self.calls.append(("iteration", update.iteration, episode.iteration))

    def on_checkpoint(self, path, iteration):
        assert (path / "manifest.json").exists()
        self.calls.append(("checkpoint", iteration))

    def on_finding(self, finding):
        self.findings.append(finding)

    def on_end(self, status):
        self.calls.append(("end", status))


def run(work: Path, prepared: Path, observers=(), stop=None, params: Params | None = None) -> None:
    with open_session(params or small_params(), work, prepared) as session:
        train(session, observers, stop)


def interrupted_after(steps: int, work: Path, prepared: Path, params=None, message: str = "stopped with") -> Watcher:
    stop = threading.Event()
    watcher = Watcher(lambda count: stop.set() if count == steps else None)
    with pytest.raises(Interrupted, match=message):
        run(work, prepared, [watcher], stop, params)
    assert watcher.steps == steps, "the stop is seen after the very step in which it was asked for"
    assert watcher.calls[-1] == ("end", "interrupted")
    return watcher
