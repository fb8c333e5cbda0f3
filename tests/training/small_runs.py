"""Runs of seconds: their params, who watches them, and what it means that two are the same."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import save
from torch import Tensor

from simic import durable
from simic.params import Params, Runtime
from simic.telemetry import recorder
from simic.telemetry.columns import EVENTS, Columns, published
from simic.telemetry.rows import FindingRow, UpdateRow
from simic.training.checkpoint import Checkpoint
from simic.training.interrupts import Interrupted
from simic.training.session import open_session
from simic.training.trainer import train
from tests import standard
from tests.standard import Policy, PPOParams, Train

SIZES = {"encoder_units": 16, "core_units": 16, "head_units": 8, "embedding_units": 2}


def small_params(runtime: dict | None = None, **changes: object) -> Params:
    settings = {
        "envs": 4,
        "episode_steps": 3,
        "batches_per_epoch": 2,
        "iterations": 4,
        "validate_every": 2,
    }
    settings |= {"policy": Policy(**SIZES), "ppo": PPOParams(epochs=2, minibatches=2), **changes}
    return standard.Params(
        train=Train(**settings),
        runtime=Runtime(**{"threads": 1, "cores": 1, **(runtime or {})}),
    )


def assert_same_run(work: Path, expected: Path) -> None:
    """Every byte of checkpoints and telemetry."""
    files, expected_files = (
        sorted(path.relative_to(run) for path in run.glob("checkpoints/*/*"))
        for run in (work, expected)
    )
    assert files == expected_files
    assert [
        file for file in files if (work / file).read_bytes() != (expected / file).read_bytes()
    ] == []
    assert telemetry_of(work) == telemetry_of(expected)


def flip(file: Path, at: int) -> None:
    """Damage one bit."""
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)


def rewritten(checkpoint: Checkpoint, tensors: dict[str, Tensor], **changes: object) -> None:
    """Write a state anew, consistent in itself, but not what its run wrote."""
    content = save(tensors)
    sha256 = {"state.safetensors": durable.sha256_of(content)}
    (checkpoint.path / "state.safetensors").write_bytes(content)
    (checkpoint.path / "manifest.json").write_bytes(
        checkpoint.manifest.model_copy(update={"sha256": sha256, **changes}).to_json()
    )


def telemetry_of(work: Path) -> dict[str, bytes]:
    """Every file of the log."""
    return {path.name: path.read_bytes() for path in (work / "telemetry").iterdir()}


def recorded(work: Path) -> list:
    """All but the findings: what a resume that found something leaves the same."""
    tables = ("steps", "train", "validation", "events")
    return [
        (
            repr(file.update),
            file.events.texts,
            [
                (table, name, values.tobytes())
                for table in tables
                for name, values in file.columns(table).items()
            ],
        )
        for file in recorder.read(work / "telemetry")
        if file.update
    ]


def findings_of(work: Path) -> list[FindingRow]:
    return [finding for file in recorder.read(work / "telemetry") for finding in file.findings]


def updates_of(work: Path) -> list[UpdateRow]:
    return [file.update for file in recorder.read(work / "telemetry") if file.update]


def steps_of(work: Path) -> list[SimpleNamespace]:
    """One of all hosts each, values as they are published."""
    rows = []
    for file in recorder.read(work / "telemetry"):
        columns = {
            name: published(values).tolist() for name, values in file.columns("steps").items()
        }
        for t in range(len(columns.get("op", ()))):
            row = SimpleNamespace(iteration=file.update.iteration, step=t + 1, components={})
            for name, values in columns.items():
                group, _, leaf = name.rpartition("/")
                (row.components if group else vars(row))[leaf] = values[t]
            rows.append(row)
    return rows


def episodes_of(work: Path, split: str) -> list[tuple[int, Columns]]:
    """Those of each iteration that has some."""
    files = [file for file in recorder.read(work / "telemetry") if file.columns(split)]
    return [(file.update.iteration, file.columns(split)) for file in files]


def events_of(work: Path) -> list[SimpleNamespace]:
    rows = []
    for file in recorder.read(work / "telemetry"):
        columns = (file.events.columns.get(name, ()) for name in EVENTS)
        for step, env, slot, text in zip(*columns, strict=True):
            name, detail = file.events.texts[text]
            place = {"step": int(step), "env": int(env), "slot": int(slot)}
            iteration = file.update.iteration
            rows.append(SimpleNamespace(iteration=iteration, **place, name=name, detail=detail))
    return rows


class Watcher:
    """An observer that writes down what it is told and calls ``act`` after every step."""

    def __init__(self, act=lambda count: None):
        self.calls, self.findings, self.steps, self._act = [], [], 0, act

    def on_start(self, info):
        self.info = info
        self.calls.append("start")

    def on_step(self, iteration, step):
        self.steps += 1
        self.calls.append(("step", iteration, step))
        self._act(self.steps)

    def on_rollout(self, iteration, steps):
        self.calls.append(("rollout", iteration, len(steps["op"])))

    def on_iteration(self, update, episode):
        self.calls.append(("iteration", update.iteration))

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


def interrupted_after(steps: int, work: Path, prepared: Path, params: Params) -> None:
    stop = threading.Event()
    watcher = Watcher(lambda count: stop.set() if count == steps else None)
    with pytest.raises(Interrupted, match="stopped with"):
        run(work, prepared, [watcher], stop, params)
    assert watcher.steps == steps, "the stop is seen after the very step in which it was asked for"
    assert watcher.calls[-1] == ("end", "interrupted")
