"""The smallest training with a run's settings in which every part of the learner acts."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from simic import durable
from simic.data.batches import HOST_FILE, META_FILE, TRAINVAL_FILE, Dataset, Meta, load_split, read_meta
from simic.envs.patient import steps_to_finish
from simic.params import Lifecycle, Params, Train

ITERATIONS = 3
TASKS = {"train": 4, "val": 2}  # of a bank, at most, by group
SAMPLES = 64  # of each task and split, at most; a seed for tables has 48 of them for centres
LEAST_STEPS = 5  # of an episode, so that some seeds are kept and others replaced
UNITS = 32  # of each layer of the policy, at most: the formulas are those of any width


def composed(tree: Params, prepared: Path) -> Params:
    """Return the run's kind of policy, PPO, rewards and hosts with few hosts, steps, batches, units and iterations, in
    one process on the CPU. ``prepared`` has the thinned data.
    """
    train = tree.train
    lifecycle = _quick(train.lifecycle)
    changed: Mapping[str, Any] = {
        "envs": 2 * train.ppo.minibatches,
        "episode_steps": _lengths(train, max(LEAST_STEPS, steps_to_finish(Lifecycle(**lifecycle)) + 2)),
        "batches_per_epoch": 1,
        "batch_size": min(train.batch_size, read_meta(prepared).samples["train"] // 2),
        "iterations": ITERATIONS,
        "validate_every": ITERATIONS,
        "stop_on": "never",
        "lifecycle": lifecycle,
        "policy": _narrow(train.policy.model_dump()),
    }
    # As many threads as there are, since a session sets those of the whole process.
    runtime = {"device": "cpu", "processes": 1, "threads": torch.get_num_threads(), "checkpoint_every": 1}
    return Params.model_validate(
        tree.model_dump() | {"train": train.model_dump() | changed, "runtime": tree.runtime.model_dump() | runtime}
    )


def _lengths(train: Train, least: int) -> int | tuple[int, int]:
    """Return the shortest length of episodes, or a range where the run has one."""
    return least if isinstance(train.episode_steps, int) else (least, least + 2)


def _quick(lifecycle: Lifecycle) -> dict[str, Any]:
    """Return a lifecycle with the shortest waits."""
    waits = ("training_dwell", "blending_dwell", "min_prune_age", "embargo_steps", "reset_steps")
    return lifecycle.model_dump() | {name: min(1, getattr(lifecycle, name)) for name in waits}


def _narrow(policy: Mapping[str, Any]) -> dict[str, Any]:
    return {name: min(value, UNITS) if name.endswith("units") else value for name, value in policy.items()}


def thinned(prepared: Path, target: Path) -> Path:
    """Write a few tasks and samples of prepared data to ``target``, without the test data, and return it."""
    meta = read_meta(prepared)
    kept = [place for group, most in TASKS.items() for place in _first(meta, group, most)]
    arrays: dict[str, Tensor] = {}
    for split in ("train", "val"):
        whole = load_split(prepared, split)
        arrays |= {f"{name}_{split}": _thin(whole, x, kept) for name, x in (("x", whole.x), ("y", whole.y))}
    content, samples = save(arrays), {split: min(count, SAMPLES) for split, count in meta.samples.items()}
    hashes = {TRAINVAL_FILE: durable.sha256_of(content)}
    with durable.new_directory(target) as folder:
        durable.write_synced(folder / TRAINVAL_FILE, content)
        if HOST_FILE in meta.sha256:
            shutil.copy(prepared / HOST_FILE, folder / HOST_FILE)
            hashes[HOST_FILE] = meta.sha256[HOST_FILE]
        tasks = [meta.tasks[place] for place in kept]
        small = meta.model_copy(update={"tasks": tasks, "samples": samples, "sha256": hashes})
        durable.write_synced(folder / META_FILE, small.to_json())
    return target


def _first(meta: Meta, group: str, most: int) -> list[int]:
    """Return the indices of a group's first tasks; a data set alone is one task of group train."""
    return [place for place, task in enumerate(meta.tasks) if task.group == group][:most]


def _thin(whole: Dataset, values: Tensor, tasks: list[int]) -> Tensor:
    """Return the first samples of those tasks, one task after another."""
    return torch.cat([values[task * len(whole) :][: min(len(whole), SAMPLES)] for task in tasks]).contiguous()
