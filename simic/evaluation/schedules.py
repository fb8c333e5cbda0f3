"""Open-loop schedules: which blueprint in which slots, germinated when, whatever the measurements say.

They are what a search without a controller chooses from; one actor plays another schedule on every host. A grid is what
every schedule reached on every host of some tasks.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator
from torch import Tensor

from simic import rng
from simic.data.batches import Dataset
from simic.envs.growth_env import GrowthEnv
from simic.envs.patient import FULL_ALPHA, TEMPO
from simic.envs.play import Episode, Situation, play
from simic.envs.records import StepInfo
from simic.errors import SimicError
from simic.evaluation.scoring import Hosts, committed, in_populations, open_env, rows_at_once
from simic.growth.life.vocabulary import Action, Op, Stage
from simic.params import Params
from simic.rng import Purpose

NONE = -1  # no seed in that slot
NEXT_OP = {
    Stage.GERMINATED: Op.ADVANCE,
    Stage.TRAINING: Op.ADVANCE,
    Stage.BLENDING: Op.ADVANCE,
    Stage.HOLDING: Op.FOSSILIZE,
}


@dataclass(frozen=True)
class Schedule:
    """A blueprint's index, or NONE, for every slot; ``step`` is when the first seed germinates, the others follow."""

    blueprints: tuple[int, ...]
    step: int = 0

    def name(self, blueprints: Sequence[str]) -> str:
        """Return it in words."""
        seeds = [f"{blueprints[kind]} at {slot}" for slot, kind in enumerate(self.blueprints) if kind != NONE]
        return f"{' + '.join(seeds)}, step {self.step}" if seeds else "static"

    @classmethod
    def named(cls, name: str, blueprints: Sequence[str], slots: int) -> Self:
        """Return the schedule that ``name`` gives this name; SimicError where there is none of these blueprints and
        slots.
        """
        kinds = [NONE] * slots
        if name == "static":
            return cls(tuple(kinds))
        try:
            seeds, step = name.split(", step ")
            for seed in seeds.split(" + "):
                kind, slot = seed.split(" at ")
                kinds[range(slots).index(int(slot))] = blueprints.index(kind)
            return cls(tuple(kinds), int(step))
        except ValueError:
            raise SimicError(
                f"schedule {name!r}: must be BLUEPRINT at SLOT + …, step N with slots below {slots} and blueprints "
                f"from {', '.join(blueprints)}"
            ) from None


def every_schedule(
    blueprints: Sequence[Sequence[int]], max_seeds: int, steps: Sequence[int], most: int
) -> list[Schedule]:
    """Return static first, then every choice of at most ``max_seeds`` seeds of the blueprints of each slot. Of more
    than ``most`` a sample by hash, in which those with one seed, and those with one blueprint in as many slots as
    allowed, come before the others.
    """
    simple = []
    seeds = min(max_seeds, sum(bool(kinds) for kinds in blueprints))
    several = []
    for step, kinds in product(steps, product(*((NONE, *kinds) for kinds in blueprints))):
        used = [kind for kind in kinds if kind != NONE]
        if not 1 <= len(used) <= seeds:
            continue
        few = len(used) == 1 or (len(used) == seeds and len(set(used)) == 1)
        (simple if few else several).append(Schedule(kinds, step))
    left = most - 1
    return [Schedule((NONE,) * len(blueprints)), *_sample(simple, left), *_sample(several, left - len(simple))]


def _sample(schedules: list[Schedule], count: int) -> list[Schedule]:
    """Return so many of them by hash, in their order; all where there are no more."""
    order = rng.permutation(rng.key(0, Purpose.SUBSAMPLE), len(schedules)).tolist()
    return [schedules[k] for k in sorted(order[: max(0, count)])]


class OpenLoop:
    """Plays a schedule of its own on each host ``[E]``: one op a step, the lowest slot that can move on first."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.blueprint = torch.tensor([schedule.blueprints for schedule in schedules])
        self.step = torch.tensor([schedule.step for schedule in schedules])
        seeds = {seed for schedule in schedules for seed in enumerate(schedule.blueprints) if seed[1] != NONE}
        self.asks: dict[str, tuple[int, ...]] = {}
        if seeds:
            self.asks = {
                "op": (Op.GERMINATE, Op.FOSSILIZE),
                "slot": tuple(sorted({slot for slot, _ in seeds})),
                "blueprint": tuple(sorted({kind for _, kind in seeds})),
                "style": (0,),
                "tempo": (TEMPO,),
                "alpha_target": (FULL_ALPHA,),
            }

    def start(self, episode: Episode) -> None:
        device = episode.env_ids.device
        self.blueprint, self.step = self.blueprint.to(device), self.step.to(device)

    def act(self, situation: Situation) -> Action:
        slots, masks = situation.slots, situation.observation.masks
        op = torch.full_like(slots.stage, int(Op.WAIT))
        for stage, following in NEXT_OP.items():
            op = torch.where(slots.stage == stage, int(following), op)
        wanted = (self.blueprint != NONE) & (situation.step >= self.step)[:, None] & (slots.germinations == 0)
        op = torch.where((slots.stage == Stage.DORMANT) & wanted, int(Op.GERMINATE), op)
        kind = self.blueprint.clamp(min=0)
        legal = masks["slot"].gather(1, op[:, None]).squeeze(1)
        affordable = masks["blueprint"].gather(2, kind[:, :, None])[:, :, 0] | (op != Op.GERMINATE)
        ready = legal & affordable & (op != Op.WAIT)
        slot = ready.int().argmax(dim=1)
        rows = torch.arange(len(slot), device=slot.device)
        chosen = torch.where(ready.any(dim=1), op[rows, slot], int(Op.WAIT))
        zero = torch.zeros_like(slot)
        return Action(chosen, slot, kind[rows, slot], zero, zero + TEMPO, zero + FULL_ALPHA, zero, zero)


# --- grids ---
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
