"""Play open-loop schedules: which blueprint germinates in which slot and when, whatever the measurements say.

A search without a controller chooses from them. One actor plays different schedules on its hosts. A grid holds the
scores of every schedule on every host of some tasks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator
from torch import Tensor

from simic import rng
from simic.data.batches import Dataset
from simic.envs.growth_env import GrowthEnv
from simic.envs.patient import PLAIN_SEED, plain_action
from simic.envs.play import Episode, Situation, play
from simic.envs.records import StepInfo
from simic.evaluation.scoring import Hosts, committed, in_populations, open_env, rows_at_once
from simic.growth.life.vocabulary import Action, Op, Stage
from simic.params import Params
from simic.rng import Purpose

# No seed in that slot.
NONE = -1
NEXT_OP = {
    Stage.GERMINATED: Op.ADVANCE,
    Stage.TRAINING: Op.ADVANCE,
    Stage.BLENDING: Op.ADVANCE,
    Stage.HOLDING: Op.FOSSILIZE,
}


@dataclass(frozen=True)
class Schedule:
    """Say which blueprint germinates in which slot; one seed follows the other."""

    # Index of the blueprint of every slot, or NONE.
    blueprints: tuple[int, ...]
    # When the first seed germinates.
    step: int = 0

    def name(self, blueprints: Sequence[str]) -> str:
        """Name it in words."""
        seeds = [
            f"{blueprints[kind]} at {slot}"
            for slot, kind in enumerate(self.blueprints)
            if kind != NONE
        ]
        return f"{' + '.join(seeds)}, step {self.step}" if seeds else "static"


def every_schedule(
    blueprints: Sequence[Sequence[int]], max_seeds: int, steps: Sequence[int], most: int
) -> list[Schedule]:
    """List schedules: static first, then every choice of seeds.

    Of too many a sample is drawn by hash. Simple ones come before the others: those with one seed, and those with one
    blueprint in as many slots as allowed.

    Args:
        blueprints: which can grow, for every slot.
        max_seeds: of a schedule.
        steps: when the first seed may germinate.
        most: how many schedules there may be.
    """
    seeds = min(max_seeds, sum(bool(kinds) for kinds in blueprints))
    simple: list[Schedule] = []
    mixed: list[Schedule] = []
    # All choices in a fixed order: numbers of schedules are recorded.
    for step, choice in product(steps, product(*((NONE, *kinds) for kinds in blueprints))):
        grown = [kind for kind in choice if kind != NONE]
        if not 1 <= len(grown) <= seeds:
            continue
        is_simple = len(grown) == 1 or (len(grown) == seeds and len(set(grown)) == 1)
        (simple if is_simple else mixed).append(Schedule(choice, step))
    # Static is always there: what growing is worth is measured against it.
    remaining = most - 1
    static = Schedule((NONE,) * len(blueprints))
    return [static, *_sample(simple, remaining), *_sample(mixed, remaining - len(simple))]


def _sample(schedules: list[Schedule], count: int) -> list[Schedule]:
    """Draw some schedules by hash, in their order; all where there are no more."""
    order = rng.permutation(rng.key(0, Purpose.SUBSAMPLE), len(schedules)).tolist()
    return [schedules[k] for k in sorted(order[: max(0, count)])]


class OpenLoop:
    """Play one schedule for each host ``[E]``: one op a step, the lowest slot that can move on first."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.blueprint = torch.tensor([schedule.blueprints for schedule in schedules])
        self.step = torch.tensor([schedule.step for schedule in schedules])
        openings = {opening for schedule in schedules for opening in enumerate(schedule.blueprints)}
        seeds = {(slot, kind) for slot, kind in openings if kind != NONE}
        # What it will choose, so that actions which are closed are refused; the static schedule chooses nothing.
        self.asks: dict[str, tuple[int, ...]] = {}
        if seeds:
            self.asks = {
                "op": (Op.GERMINATE, Op.FOSSILIZE),
                "slot": tuple(sorted({slot for slot, _ in seeds})),
                "blueprint": tuple(sorted({kind for _, kind in seeds})),
                **PLAIN_SEED,
            }

    def start(self, episode: Episode) -> None:
        self.blueprint = self.blueprint.to(episode.env_ids.device)
        self.step = self.step.to(episode.env_ids.device)

    def act(self, situation: Situation) -> Action:
        slots = situation.slots
        masks = situation.observation.masks

        # The next op of every slot.
        op = torch.full_like(slots.stage, int(Op.WAIT))
        for stage, following in NEXT_OP.items():
            op = torch.where(slots.stage == stage, int(following), op)
        due = (
            (self.blueprint != NONE)
            & (situation.step >= self.step)[:, None]
            & (slots.germinations == 0)
        )
        op = torch.where((slots.stage == Stage.DORMANT) & due, int(Op.GERMINATE), op)

        # The first slot whose op is possible.
        kind = self.blueprint.clamp(min=0)
        legal = masks["slot"].gather(1, op[:, None]).squeeze(1)
        affordable = masks["blueprint"].gather(2, kind[:, :, None])[:, :, 0] | (op != Op.GERMINATE)
        ready = legal & affordable & (op != Op.WAIT)
        slot = ready.int().argmax(dim=1)
        rows = torch.arange(len(slot), device=slot.device)
        chosen = torch.where(ready.any(dim=1), op[rows, slot], int(Op.WAIT))
        return plain_action(chosen, slot, kind[rows, slot])


# --- grids ---

# [hosts, schedules]; lists in JSON.
Table = Annotated[
    NDArray[np.float64], PlainValidator(np.array), PlainSerializer(lambda table: table.tolist())
]


@dataclass(frozen=True)
class Grid:
    """Hold the committed network that every schedule ends with on every host, ``[R, S]``."""

    val_accuracy_pct: Table
    # NaN where there is no test split to score on.
    test_accuracy_pct: Table
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
    progress: Callable[[int, int], None],
) -> dict[int, Grid]:
    """Play every schedule once on every host, many rows side by side.

    A schedule does not look at what time is left, so the longest episode contains all shorter ones.

    Args:
        params: those of the run.
        splits: data to train and to validate on.
        test: data to score on; None: there are none.
        hosts: which hosts.
        schedules: the schedules.
        device: where to compute.
        epochs: after how many epochs networks are scored.
        progress: hears how many host trainings are done.

    Returns:
        A grid by number of epochs.
    """
    # A row for each schedule on each host, the schedules of a host side by side.
    count = len(schedules)
    lengths = sorted(set(epochs))
    tasks = hosts.tasks.repeat_interleave(count)
    ids = hosts.ids.view(len(hosts.tasks), -1).expand(-1, count).reshape(-1)
    # One environment serves all rows, as many at once as suits its hosts.
    size = torch.arange(min(rows_at_once(params), len(tasks)))
    train = params.train.model_copy(update={"episode_steps": lengths[-1]})
    env = open_env(train, params.rng_seed, params.runtime, splits, size, device)

    def episode(rows: Tensor) -> Tensor:
        actor = OpenLoop([schedules[row % count] for row in rows.tolist()])
        together = Hosts(tasks[rows], ids[rows], hosts.iteration)
        return _play_grid(env, actor, together, test, lengths)

    values = in_populations(env, len(tasks), episode, progress)
    tables = values.view(len(lengths), -1, len(hosts.tasks), count).numpy()
    return {length: Grid(*of_length) for length, of_length in zip(lengths, tables, strict=True)}


def _play_grid(
    env: GrowthEnv, actor: OpenLoop, hosts: Hosts, test: Dataset | None, lengths: Sequence[int]
) -> Tensor:
    """Play one population, and measure the fields of ``Grid`` after some numbers of epochs, ``[L, 4, E]``."""
    tables: list[Tensor] = []

    def add(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        if situation.step + 1 in lengths:
            tables.append(committed(env, test))

    play(env, actor, hosts.iteration, add, hosts.tasks, hosts.ids)
    return torch.stack(tables)
