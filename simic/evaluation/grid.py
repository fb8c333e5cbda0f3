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
from simic.evaluation.costs import Meter
from simic.evaluation.schedules import OpenLoop, Schedule
from simic.growth.batch.shards import recovered
from simic.growth.life.vocabulary import Action, Stage
from simic.growth.networks.family import family_of
from simic.params import Params
from simic.training import worker_layout

ROWS_AT_ONCE, SMALL_ROWS_AT_ONCE = 128, 1024  # hosts of one population; of those for tables

Table = NDArray[np.float64]  # [hosts, schedules]


@dataclass(frozen=True)
class Hosts:
    """Which hosts are grown: their tasks ``[R]``, the ids that their random numbers hash, and the episode. With ids
    ``[R]`` every schedule meets the same hosts, with ids ``[R, S]`` it has hosts of its own.
    """

    tasks: Tensor
    ids: Tensor
    iteration: int


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


def rows_at_once(params: Params) -> int:
    """How many hosts a population has at most."""
    return SMALL_ROWS_AT_ONCE if family_of(params.train.host.family).reads_input else ROWS_AT_ONCE


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
    host, schedule = (axis.reshape(-1) for axis in torch.meshgrid(
        torch.arange(len(hosts.tasks)), torch.arange(len(schedules)), indexing="ij"
    ))  # fmt: skip
    rows, lengths = len(host), sorted(set(epochs))
    ids = hosts.ids.view(len(hosts.tasks), -1).expand(-1, len(schedules)).reshape(-1)
    size = min(rows_at_once(params), rows)
    runtime, train = params.runtime, params.train.model_copy(update={"episode_steps": lengths[-1]})
    make = worker_layout.population(runtime, worker_layout.layout(runtime, size, device))
    env = GrowthEnv(train, params.rng_seed, splits.train, splits.val, torch.arange(size), device, runtime.backend, make)
    found: list[Tensor] = []
    with closing(env):
        for first in range(0, rows, size):
            # The last population is filled up with rows that are not kept.
            part = torch.arange(first, first + size) % rows
            actor = OpenLoop([schedules[index] for index in schedule[part].tolist()])
            group = Hosts(hosts.tasks[host[part]], ids[part], hosts.iteration)
            played = recovered(
                env.population, lambda actor=actor, group=group: _played(env, actor, group, splits.test, lengths)
            )
            found.append(played[..., : rows - first])
            told(min(first + size, rows), rows)
    tables = torch.cat(found, 2).view(len(lengths), -1, len(hosts.tasks), len(schedules)).numpy()
    return {
        length: Grid(val, test if splits.test is not None else None, *rest)
        for length, (val, test, *rest) in zip(lengths, tables, strict=True)
    }


def _played(env: GrowthEnv, actor: OpenLoop, hosts: Hosts, test: Dataset | None, lengths: Sequence[int]) -> Tensor:
    """Return one row per field of ``Grid`` after each of so many epochs, ``[L, 6, E]`` float64."""
    meter, found = Meter.of(env, env.num_envs), list[Tensor]()

    def add(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        meter.add(info)
        if situation.step + 1 in lengths:
            spent = torch.stack([meter.training, meter.validation]).double().cpu()
            found.append(torch.cat([reached(env, test), spent]))

    play(env, actor, hosts.iteration, add, hosts.tasks, hosts.ids)
    return torch.stack(found)


def reached(env: GrowthEnv, test: Dataset | None) -> Tensor:
    """Of the committed networks now ``[4, E]`` float64: accuracy in points on validation and test
    split (NaN where there is none), parameters, FLOPs per sample.
    """
    kept = env.slots.stage == Stage.FOSSILIZED
    val = env.state.measured.committed_accuracy
    scored = env.committed(test)[0] if test is not None else torch.full_like(val, torch.nan)
    flops = env.host.flops_per_sample + torch.where(kept, env.population.seed_flops(env.slots), 0).sum(dim=1)
    params = env.host.params + torch.where(kept, env.state.seed_params, 0).sum(dim=1)
    return torch.stack([column.double().cpu() for column in (val, scored, params, flops)])
