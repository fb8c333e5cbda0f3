"""The smallest training with the settings of a run in which everything that the learner does happens."""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from simic import durable
from simic.data.batches import HOST_FILE, META_FILE, TRAINVAL_FILE, Dataset, Meta, load_split, read_meta
from simic.envs.actions import choices, open_choices
from simic.envs.explorer import Tries
from simic.envs.masks import seed_budget
from simic.envs.patient import steps_to_finish
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.params import Lifecycle, Params, Train

SURVEYED, WARMED, REINFORCED = 2, 1, 2  # iterations; of PPO one more where nothing is taught before
TASKS = {"train": 4, "val": 2}  # of a bank, at most, by group
SAMPLES = 32  # of each task and split, at most
UNITS = 32  # of each layer of the policy, at most: the formulas are those of any width
TRIES = 2  # of which twins keep one each, so that they differ by what they decide


def composed(tree: Params, prepared: Path) -> Params:
    """The run's own kind of policy, PPO, twins, rewards and hosts; few hosts, steps, batches, units and iterations, in
    float32, in this process. What is taught comes first, if anything is. ``prepared`` has the data, thinned already.
    """
    train, taught = tree.train, tree.train.taught > 0
    lifecycle = _quick(train.lifecycle)
    survey, warm = (min(SURVEYED, train.survey), WARMED) if taught else (0, 0)
    iterations = survey + warm + REINFORCED + (not taught)
    changed: Mapping[str, Any] = {
        "envs": _envs(train, _openings(train, prepared) if taught else 1),
        "episode_steps": _steps(Lifecycle(**lifecycle), TRIES if taught else 1),
        "batches_per_epoch": 1,
        "batch_size": min(train.batch_size, read_meta(prepared).samples["train"] // 2),
        "iterations": iterations,
        "validate_every": iterations,
        "survey": survey,
        "warm_start": warm,
        "stop_on": "never",
        "lifecycle": lifecycle,
        "policy": _narrow(train.policy.model_dump()) | {"precision": "float32"},
    }
    # As many threads as there are, since a session sets those of the whole process.
    runtime = {"device": "cpu", "processes": 1, "threads": torch.get_num_threads(), "checkpoint_every": 1}
    return Params.model_validate(
        tree.model_dump() | {"train": train.model_dump() | changed, "runtime": tree.runtime.model_dump() | runtime}
    )


def _quick(lifecycle: Lifecycle) -> dict[str, Any]:
    """As short as it can be."""
    waits = ("training_dwell", "blending_dwell", "min_prune_age", "embargo_steps", "reset_steps")
    return lifecycle.model_dump() | {name: min(1, getattr(lifecycle, name)) for name in waits}


def _envs(train: Train, openings: int) -> int:
    """As few as make whole groups, and at least two of them in a minibatch."""
    fewest = math.lcm(train.twins, train.ppo.minibatches, openings)
    return fewest if fewest > train.ppo.minibatches else 2 * fewest


def _steps(lifecycle: Lifecycle, tries: int) -> int:
    """As few as so many tries take."""
    steps = steps_to_finish(lifecycle) + 2
    while len(Tries.of(lifecycle, steps).starts) < tries:
        steps += 1
    return steps


def _narrow(policy: Mapping[str, Any]) -> dict[str, Any]:
    return {name: min(value, UNITS) if name.endswith("units") else value for name, value in policy.items()}


def _openings(train: Train, prepared: Path) -> int:
    """What a survey tries side by side: blueprints in slots that budget and ``train.actions`` allow."""
    data, device = load_split(prepared, "val"), torch.device("cpu")
    host = build_host(train.host, data.shape, data.classes, data.host)
    kinds = blueprints_of(host.family)
    left_open = open_choices(train.actions, choices(host.slots, [kind.name for kind in kinds]), device)
    budget = seed_budget(host, kinds, train.lifecycle.param_budget, device, left_open.get("blueprint"))
    possible = (budget.reserve <= budget.limit) & budget.runs
    possible = possible & left_open["slot"][:, None] if "slot" in left_open else possible
    return max(1, int(possible.sum()))


def thinned(prepared: Path, target: Path) -> Path:
    """A few tasks and samples of prepared data, as data of their own in ``target``, without the test data."""
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
    """Tasks of a group by their place; of a data set alone there is one, of group train."""
    return [place for place, task in enumerate(meta.tasks) if task.group == group][:most]


def _thin(whole: Dataset, values: Tensor, tasks: list[int]) -> Tensor:
    """The first samples of those tasks, one task after another."""
    return torch.cat([values[task * len(whole) :][: min(len(whole), SAMPLES)] for task in tasks]).contiguous()
