"""A search without a controller: every schedule on every host of some tasks, and what each reached."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator
from torch import Tensor

from simic.data.batches import Dataset
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Situation, play
from simic.envs.records import StepInfo
from simic.evaluation.schedules import OpenLoop, Schedule
from simic.evaluation.scoring import Hosts, committed, in_populations, open_env, rows_at_once
from simic.growth.life.vocabulary import Action
from simic.params import Params

# [hosts, schedules]; kept as lists
Table = Annotated[NDArray[np.float64], PlainValidator(np.array), PlainSerializer(lambda table: table.tolist())]


@dataclass(frozen=True)
class Grid:
    """What every schedule reached on every host ``[R, S]``, of the committed network at the end of the episode."""

    val_accuracy_pct: Table
    test_accuracy_pct: Table  # NaN where there is no test split to score on
    params: Table
    flops_per_sample: Table


def grids(
    params: Params,
    splits: tuple[Dataset, Dataset],
    test: Dataset | None,
    hosts: Hosts,
    schedules: Sequence[Schedule],
    device: torch.device,
    epochs: Sequence[int],
    told: Callable[[int, int], None],
) -> dict[int, Grid]:
    """Play them all once, many rows side by side, and return a grid for each number of epochs. ``splits`` train and
    validate; ``told`` hears how many of how many host trainings are done.

    A schedule does not look at what time is left, so that a run of the longest episode is also one of every shorter.
    """
    count, lengths = len(schedules), sorted(set(epochs))
    tasks = hosts.tasks.repeat_interleave(count)
    ids = hosts.ids.view(len(hosts.tasks), -1).expand(-1, count).reshape(-1)
    size = torch.arange(min(rows_at_once(params), len(tasks)))
    train = params.train.model_copy(update={"episode_steps": lengths[-1]})
    with closing(open_env(train, params.rng_seed, params.runtime, splits, size, device)) as env:

        def episode(rows: Tensor) -> Callable[[], Tensor]:
            actor = OpenLoop([schedules[row % count] for row in rows.tolist()])
            return partial(_played, env, actor, Hosts(tasks[rows], ids[rows], hosts.iteration), test, lengths)

        played = in_populations(env, len(tasks), episode, told)
    tables = played.view(len(lengths), -1, len(hosts.tasks), count).numpy()
    return {length: Grid(*of_length) for length, of_length in zip(lengths, tables, strict=True)}


def _played(env: GrowthEnv, actor: OpenLoop, hosts: Hosts, test: Dataset | None, lengths: Sequence[int]) -> Tensor:
    """Return one row per field of ``Grid`` after each of so many epochs, ``[L, 4, E]`` float64."""
    tables = list[Tensor]()

    def add(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        if situation.step + 1 in lengths:
            tables.append(committed(env, test))

    play(env, actor, hosts.iteration, add, hosts.tasks, hosts.ids)
    return torch.stack(tables)
