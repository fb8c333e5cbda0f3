"""The smallest training with a run's settings in which every part of the learner acts."""

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from simic import durable
from simic.audit.provenance import PUBLISHED
from simic.audit.record import RunRecord
from simic.data.batches import META_FILE, TRAINVAL_FILE, load_split, read_meta
from simic.envs.patient import steps_to_finish
from simic.params import Params
from simic.registry import GYM
from simic.telemetry import publish
from simic.telemetry.columns import Columns
from simic.telemetry.rows import UpdateRow
from simic.training import checkpoint, kept_iteration
from simic.training.interrupts import Interrupted
from simic.training.observers import Observer
from simic.training.session import open_session
from simic.training.trainer import train
from tests.reference.finished_gym_run import FinishedGymRun
from tests.reference.finished_run import FinishedRun
from tests.reference.recorded_iterations import IterationRecorder

TASKS = {
    "train": 4,
    "val": 2,
}  # of a bank, at most, by group; a data set alone is one task of group train
SAMPLES = 64  # of each task and split, at most; a seed for tables has 48 of them for centres
ROLLOUT = 32  # steps of an environment, at most
LEAST_STEPS = 5  # of an episode, so that some seeds are kept and others replaced
UNITS = 32  # of each layer of the policy, at most: the formulas are those of any width
WAITS = ("training_dwell", "blending_dwell", "min_prune_age", "embargo_steps", "reset_steps")


class Size(NamedTuple):
    """What a small training has of what costs time; environments are twice the minibatches unless given."""

    iterations: int = 3
    envs: int | None = None
    cores: int = 1


def composed(tree: Params, prepared: Path, size: Size) -> Params:
    """Take the run's kind of policy, PPO, rewards and hosts with few steps, batches and units, on the CPU.

    Args:
        tree: the settings of the run
        prepared: the thinned data
        size: iterations, environments and processes
    """
    train = tree.train
    lifecycle = train.lifecycle.model_copy(
        update={name: min(1, getattr(train.lifecycle, name)) for name in WAITS}
    )
    steps = max(LEAST_STEPS, steps_to_finish(lifecycle) + 2)
    samples = read_meta(prepared).samples
    if tree.prepare.is_gym:
        steps = min(ROLLOUT, train.longest_episode)
        samples = {"train": 2 * train.batch_size}
    units = {
        name: min(size, UNITS)
        for name, size in train.policy.model_dump().items()
        if name.endswith("units")
    }
    changed: dict[str, Any] = {
        "envs": size.envs or 2 * train.ppo.minibatches,
        "episode_steps": steps if isinstance(train.episode_steps, int) else (steps, steps + 2),
        "batches_per_epoch": 1,
        "batch_size": min(train.batch_size, samples["train"] // 2),
        "iterations": size.iterations,
        "validate_every": size.iterations,
        "stop_on": "never",
        "lifecycle": lifecycle,
        "policy": train.policy.model_copy(update=units),
    }
    # As many threads as there are, since a session sets those of the whole process.
    runtime = {
        "device": "cpu",
        "cores": size.cores,
        "threads": torch.get_num_threads(),
        "checkpoint_every": 1,
    }
    small = {
        "train": train.model_copy(update=changed),
        "runtime": tree.runtime.model_copy(update=runtime),
    }
    return tree.model_copy(update=small)


def thinned(prepared: Path, target: Path) -> Path:
    """Write a few tasks and samples of prepared data to ``target``, without the test data, and return it."""
    if read_meta(prepared).task == GYM:
        return Path(shutil.copytree(prepared, target))  # there is but a description
    meta = read_meta(prepared)
    arrays = {}
    places = {
        group: [place for place, task in enumerate(meta.tasks) if task.group == group]
        for group in TASKS
    }
    kept = [place for group, most in TASKS.items() for place in places[group][:most]]
    for split in ("train", "val"):
        whole = load_split(prepared, split)
        few = min(len(whole), SAMPLES)
        for name, values in (("x", whole.x), ("y", whole.y)):
            arrays[f"{name}_{split}"] = torch.cat(
                [values[task * len(whole) :][:few] for task in kept]
            ).contiguous()
    content = save(arrays)
    samples = {split: min(count, SAMPLES) for split, count in meta.samples.items()}
    hashes = {TRAINVAL_FILE: durable.sha256_of(content)}
    with durable.new_directory(target) as folder:
        durable.write_synced(folder / TRAINVAL_FILE, content)
        tasks = [meta.tasks[place] for place in kept]
        small = meta.model_copy(update={"tasks": tasks, "samples": samples, "sha256": hashes})
        durable.write_synced(folder / META_FILE, small.to_json())
    return target


class StopAfterTheFirst(Observer):
    """Stop after the first iteration, so that the resume restores everything."""

    def __init__(self) -> None:
        self.stop = Event()

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        self.stop.set()


def small_run(params: Params, prepared: Path, scratch: Path, size: Size) -> FinishedRun:
    """Train a few iterations of a small training with these settings, resumed after the first."""
    data = thinned(prepared, scratch / "data")
    return recorded_run(composed(params, data, size), data, scratch)


def recorded_run(params: Params, prepared: Path, scratch: Path) -> FinishedRun:
    """Train, interrupted after the first iteration, record every iteration and publish everything."""
    work = scratch / "work"
    telemetry = scratch / "telemetry"
    checkpoints = scratch / "checkpoints"
    recorded: dict[int, dict[str, Tensor]] = {}
    first = StopAfterTheFirst()
    with open_session(params, work, prepared, fresh=True) as session, suppress(Interrupted):
        recorder = IterationRecorder(session)
        train(session, [first], first.stop)
    recorded |= recorder.iterations
    with open_session(params, work, prepared) as session:
        recorder = IterationRecorder(session)
        counters = train(session)
        recorded |= recorder.iterations
        assert counters.best_iteration is not None  # it is trained to its end
        extent = session.recorder.flush()
        links = publish.links(work, extent)
        session.checkpoints.publish(checkpoints, counters.best_iteration, counters.iteration, links)
        publish.publish(work, extent, telemetry, kept_iteration.published(params))
    run = RunRecord.from_published(params, telemetry)
    run = replace(
        run, checkpoints={name: checkpoint.read_published(checkpoints, name) for name in PUBLISHED}
    )
    kind = FinishedGymRun if params.prepare.is_gym else FinishedRun
    return kind(prepared, scratch / "grown", telemetry, checkpoints, run, recorded)
