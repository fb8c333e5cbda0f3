"""A search without a controller: every schedule on every host of some tasks, and what each reached."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.data.batches import Dataset
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Situation, play
from simic.envs.records import StepInfo
from simic.evaluation.costs import spent
from simic.evaluation.schedules import OpenLoop, Schedule
from simic.evaluation.scoring import Hosts, committed, open_env, rows_at_once
from simic.growth.batch.shards import recovered
from simic.growth.life.vocabulary import Action
from simic.params import Params

Table = NDArray[np.float64]  # [hosts, schedules]


@dataclass(frozen=True)
class Grid:
    """What every schedule reached on every host ``[R, S]``, of the committed network at the end of the episode."""

    val_accuracy_pct: Table
    test_accuracy_pct: Table | None  # None where there is no test split to score on
    params: Table
    flops_per_sample: Table
    training_flops: Table
    validation_flops: Table


@dataclass(frozen=True)
class Splits:
    """The samples that hosts train on, are measured by and, if at all, are scored on."""

    train: Dataset
    val: Dataset
    test: Dataset | None = None


def grid(
    params: Params,
    splits: Splits,
    hosts: Hosts,
    schedules: Sequence[Schedule],
    device: torch.device,
    told: Callable[[int, int], None] = lambda done, rows: None,
) -> Grid:
    """Play them all for ``train.episode_steps``; ``told`` hears how many of how many host trainings are done."""
    epochs = params.train.longest_episode
    return grids(params, splits, hosts, schedules, device, (epochs,), told)[epochs]


def grids(
    params: Params,
    splits: Splits,
    hosts: Hosts,
    schedules: Sequence[Schedule],
    device: torch.device,
    epochs: Sequence[int],
    told: Callable[[int, int], None] = lambda done, rows: None,
) -> dict[int, Grid]:
    """Play them all once, many rows side by side, and return a grid for each number of epochs.

    A schedule does not look at what time is left, so that a run of the longest episode is also one of every shorter.
    """
    count, lengths = len(schedules), sorted(set(epochs))
    tasks = hosts.tasks.repeat_interleave(count)
    ids = hosts.ids.view(len(hosts.tasks), -1).expand(-1, count).reshape(-1)
    rows = len(tasks)
    size = min(rows_at_once(params), rows)
    train = params.train.model_copy(update={"episode_steps": lengths[-1]})
    data = splits.train, splits.val
    env = open_env(train, params.rng_seed, params.runtime, data, torch.arange(size), device)
    played: list[Tensor] = []
    with closing(env):
        for first in range(0, rows, size):
            # The last population is filled up with rows that are not kept.
            part = torch.arange(first, first + size) % rows
            actor = OpenLoop([schedules[row % count] for row in part.tolist()])
            group = Hosts(tasks[part], ids[part], hosts.iteration)
            reached = recovered(
                env.population, lambda actor=actor, group=group: _played(env, actor, group, splits.test, lengths)
            )
            played.append(reached[..., : rows - first])
            told(min(first + size, rows), rows)
    tables = torch.cat(played, 2).view(len(lengths), -1, len(hosts.tasks), count).numpy()
    return {
        length: Grid(val, test if splits.test is not None else None, *rest)
        for length, (val, test, *rest) in zip(lengths, tables, strict=True)
    }


def _played(env: GrowthEnv, actor: OpenLoop, hosts: Hosts, test: Dataset | None, lengths: Sequence[int]) -> Tensor:
    """Return one row per field of ``Grid`` after each of so many epochs, ``[L, 6, E]`` float64."""
    flops, tables = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device), list[Tensor]()

    def add(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        flops.add_(info.flops)
        if situation.step + 1 in lengths:
            costs = torch.stack(spent(env, flops)).double().cpu()
            tables.append(torch.cat([committed(env, test), costs]))

    play(env, actor, hosts.iteration, add, hosts.tasks, hosts.ids)
    return torch.stack(tables)
