"""How policies play the hosts of an evaluation side by side, and what they reach there.

An evaluation seed is one host in an iteration namespace of its own, so that host initialisation and data order are
those of no training episode and equal for every policy. Several policies share an environment, each in rows of its own:
a host costs about a fifth less in a population of 60 to 120 rows than in one of 10 (docs/history/experiments.md).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from simic.data.batches import Dataset, HeldOut, data_hash, load_held_out
from simic.envs.attribution import most_networks
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor, Episode, Situation, play, refuse_closed
from simic.envs.records import StepInfo
from simic.evaluation.policies import Static
from simic.evaluation.result import Actions, PerSeed
from simic.growth.batch.shards import Shards, recovered
from simic.growth.life.vocabulary import Action, Stage
from simic.growth.networks.family import family_of
from simic.params import Params, Runtime, Train
from simic.training import worker_layout
from simic.training.learned import LearnedActor

EVALUATION_ITERATION = 1 << 40  # far above any training iteration; data order and host initialisation hash it
ROWS_AT_ONCE, SMALL_ROWS_AT_ONCE = 128, 1024  # hosts of one population; of those for tables
BACKWARD_AND_FORWARD = 3  # a training pass costs about three forward passes (Kaplan et al. 2020, §2.1: 6N vs 2N)

T = TypeVar("T")


# --- hosts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hosts:
    """Which hosts play: their tasks ``[R]``, the ids that their random numbers hash, and the episode. In a grid of
    schedules ids ``[R]`` give every schedule the same hosts, ids ``[R, S]`` hosts of its own.
    """

    tasks: Tensor
    ids: Tensor
    iteration: int


def rows_at_once(params: Params) -> int:
    """Return how many hosts a population has at most."""
    return SMALL_ROWS_AT_ONCE if family_of(params.train.host.family).reads_input else ROWS_AT_ONCE


def in_one_process(params: Params) -> Params:
    """Return params for hosts that no other process shares."""
    return params.model_copy(update={"runtime": params.runtime.model_copy(update={"processes": 1})})


def open_env(
    train: Train, rng_seed: int, runtime: Runtime, splits: tuple[Dataset, Dataset], env_ids: Tensor,
    device: torch.device | str, group: int | None = None,
) -> GrowthEnv:  # fmt: skip
    """Return an environment of the hosts ``env_ids`` that trains and validates on ``splits``, shared out to processes
    as ``runtime`` says; ``group`` is the number of hosts that run together.
    """
    device = torch.device(device)
    compose = worker_layout.population(runtime, worker_layout.layout(runtime, len(env_ids), device, group))
    return GrowthEnv(train, rng_seed, *splits, env_ids, device, runtime.backend, compose)


def rows_together(env: GrowthEnv) -> int:
    """Count the rows that are computed together, on which their last bits depend."""
    population = env.population
    return population.layout.group if isinstance(population, Shards) else population.group


@dataclass(frozen=True)
class EvaluationSetup:
    """The hosts and held-out tasks that all policies meet: each host has the task ``tasks [H]``, and the environment
    has rows for several policies at once.
    """

    env: GrowthEnv
    held_out: HeldOut
    tasks: Tensor
    data_sha256: str
    runtime: Runtime

    @classmethod
    def open(
        cls,
        params: Params,
        prepared: Path,
        device: torch.device | str = "cpu",
        policies: int = 1,
        outside: int | None = None,
    ) -> Self:
        """Open the environment of training, for so many policies, on other hosts and the held-out tasks: at least
        ``evaluate.eval_seeds`` hosts, of every task as many; two where a group has no other task, since an interval
        needs two scores.

        ``outside`` is the place of a width: then the tasks are those from outside the suite that have it, and the
        environment stays in this process alone.
        """
        held_out = load_held_out(prepared, device)
        if outside is not None:
            params, held_out = in_one_process(params), held_out.outside[outside]
        count = len(held_out.tasks)
        least = 2 if 1 in Counter(task.group for task in held_out.tasks).values() else 1
        hosts = count * max(least, -(-params.evaluate.eval_seeds // count))
        rows = hosts * at_once(hosts, policies, rows_at_once(params))
        splits = held_out.train, held_out.val
        env = open_env(params.train, params.rng_seed, params.runtime, splits, torch.arange(rows), device)
        return cls(env, held_out, env.env_ids[:hosts] % count, data_hash(prepared), params.runtime)

    @property
    def hosts(self) -> Hosts:
        return Hosts(self.tasks, self.env.env_ids[: len(self.tasks)], EVALUATION_ITERATION)


# --- episodes side by side -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """One step of an episode: what was seen, decided, paid and what came of it."""

    situation: Situation
    action: Action
    reward: Tensor
    info: StepInfo


def of_rows(what: T, rows: slice | Tensor) -> T:
    """Return some rows of every tensor in a record, and in the records within it."""

    def part(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[rows]
        if isinstance(value, Action):
            return Action(*map(part, value))
        if isinstance(value, dict):
            return {name: part(each) for name, each in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{name: part(each) for name, each in vars(value).items()})
        return value

    return part(what)


def at_once(hosts: int, policies: int, rows: int = ROWS_AT_ONCE) -> int:
    """Return how many of so many policies share a population of about so many ``rows``, so that no population is much
    smaller than the others.
    """
    most = max(1, rows // hosts)
    return -(-policies // -(-policies // most))


class SideBySide:
    """Actors that share an environment: each sees and decides the hosts ``ids [H]`` as if it were alone."""

    def __init__(self, actors: Sequence[Actor], ids: Tensor) -> None:
        self.actors, self.ids = actors, ids

    def start(self, episode: Episode) -> None:
        for actor in self.actors:
            actor.start(replace(episode, env_ids=self.ids))

    def act(self, situation: Situation) -> Action:
        rows = rows_of_actors(len(self.actors), len(self.ids))
        parts = [actor.act(of_rows(situation, own)) for own, actor in zip(rows, self.actors, strict=True)]
        return Action(*(torch.cat(head) for head in zip(*parts, strict=True)))


def rows_of_actors(actors: int, hosts: int) -> list[slice]:
    """Return the rows of each of so many actors that share an environment."""
    return [slice(place * hosts, (place + 1) * hosts) for place in range(actors)]


def play_together(
    env: GrowthEnv,
    actors: Sequence[Actor],
    hosts: Hosts,
    steps: int | None = None,
    told: Callable[[int, int], None] = lambda done, steps: None,
) -> list[Turn]:
    """Play one episode of every actor on every host, which leaves the environment at its end; rows that are left over
    never grow; ``told`` hears how many steps are done. SimicError when an actor needs a choice that ``train.actions``
    closes.
    """
    for actor in actors:
        refuse_closed(env, actor)
    ids, parts = hosts.ids.to(env.device), env.num_envs // len(hosts.ids)
    together = SideBySide([*actors, *(Static() for _ in range(parts - len(actors)))], ids)
    turns: list[Turn] = []

    def keep(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        turns.append(Turn(situation, action, reward, info))
        told(len(turns), env.steps)

    play(env, together, hosts.iteration, keep, hosts.tasks.repeat(parts), ids.repeat(parts), steps)
    return turns


def in_populations(
    env: GrowthEnv,
    rows: int,
    episode: Callable[[Tensor], Callable[[], Tensor]],
    told: Callable[[int, int], None],
) -> Tensor:
    """Play so many rows, as many side by side as the environment has hosts, and return ``[…, rows]`` of them all.

    ``episode`` is given the numbers ``[E]`` of the rows that are next, and returns what plays them and gives
    ``[…, E]``; the last population is filled up with rows that are not kept.
    """
    played, size = list[Tensor](), env.num_envs
    for first in range(0, rows, size):
        played.append(recovered(env.population, episode(torch.arange(first, first + size) % rows)))
        told(min(first + size, rows), rows)
    return torch.cat(played, dim=-1)[..., :rows]


# --- scores ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Performance:
    """What one policy did on all hosts ``[H]``: its score on the test split, and every step; ``rows`` are its own in
    the environment.
    """

    rows: slice
    score: PerSeed
    turns: list[Turn]
    probabilities: Tensor | None  # [T, H] of what a learned policy did


def decisions(turns: Sequence[Turn]) -> Actions:
    """Write down what was decided, by host and step: the choices of all heads, with spaces between."""
    actions = torch.stack([torch.stack(tuple(turn.action), dim=1) for turn in turns], dim=1)
    return tuple(tuple(" ".join(map(str, step)) for step in host) for host in actions.tolist())


def play_for_score(
    setup: EvaluationSetup, actors: Mapping[str, Actor], steps: int | None = None
) -> Iterator[tuple[str, Performance]]:
    """Play every actor on every host, as many actors at once as the environment has rows for.

    When a performance is yielded, the environment is at the end of its episode.

    Args:
        setup: the hosts and their tasks.
        actors: who plays, by name, in this order.
        steps: of an episode; None: the longest.
    """
    env = setup.env
    hosts = setup.hosts
    names = list(actors)
    most = env.num_envs // len(hosts.tasks)
    for first in range(0, len(names), most):
        group = {name: actors[name] for name in names[first : first + most]}
        turns = recovered(env.population, lambda group=group: play_together(env, [*group.values()], hosts, steps))
        columns = committed(env, setup.held_out.test)
        for (name, actor), rows in zip(group.items(), rows_of_actors(len(group), len(hosts.tasks)), strict=True):
            of_actor = [of_rows(turn, rows) for turn in turns]
            probabilities = torch.stack(actor.probabilities) if isinstance(actor, LearnedActor) else None
            seeds = score_rows(env, rows, of_actor, columns[:, rows])
            yield name, Performance(rows, seeds, of_actor, probabilities)


def committed(env: GrowthEnv, test: Dataset | None) -> Tensor:
    """Return of the committed networks now ``[4, E]`` float64: accuracy in points on the validation and the test split
    (NaN where there is none), parameters, FLOPs per sample.
    """
    kept = env.slots.stage == Stage.FOSSILIZED
    val = env.state.measured.committed_accuracy
    scored = env.committed(test)[0] if test is not None else torch.full_like(val, torch.nan)
    flops = env.host.flops_per_sample + torch.where(kept, env.population.seed_flops(env.slots), 0).sum(dim=1)
    params = env.host.params + torch.where(kept, env.state.seed_params, 0).sum(dim=1)
    return torch.stack([column.double().cpu() for column in (val, scored, params, flops)])


def epoch_samples(train: Train, samples: int) -> int:
    """Return how many of a task's training samples one host trains on in one epoch."""
    available = samples // train.batch_size
    batches = available if train.batches_per_epoch == "all" else train.batches_per_epoch
    return batches * train.batch_size


def spent(env: GrowthEnv, flops: Tensor) -> tuple[Tensor, Tensor]:
    """Return FLOPs ``[H]`` int64 of training and of validation, from the FLOPs per sample ``[H]`` summed over steps.

    Validation is counted with every ablation: an upper bound, since equal networks are run once.
    """
    samples = epoch_samples(env.train, len(env.training_data))
    networks = most_networks(env.host.slots)
    return flops * (BACKWARD_AND_FORWARD * samples), flops * (networks * len(env.validation_data))


def score_rows(env: GrowthEnv, rows: slice, turns: list[Turn], reached: Tensor) -> PerSeed:
    """Return the seeds of one policy; ``reached [4, H]`` as ``committed`` gives it."""
    val, test, params, flops = reached
    slots = of_rows(env.slots, rows)
    training, validation = spent(env, torch.stack([turn.info.flops for turn in turns]).sum(dim=0))
    removed = [
        (turn.info.stage == Stage.PRUNED) & (turn.situation.slots.stage != Stage.PRUNED) | turn.info.replaced
        for turn in turns
    ]
    counts = {
        "params": params.long(),
        "flops_per_sample": flops.long(),
        "training_flops": training,
        "validation_flops": validation,
        "germinated": slots.germinations.sum(dim=1),
        "fossilized": (slots.stage == Stage.FOSSILIZED).sum(dim=1),
        "pruned": torch.stack(removed).sum(dim=(0, 2)),
        "rollbacks": torch.stack([turn.info.panicked for turn in turns]).sum(dim=0),
    }
    return PerSeed(
        # 4 decimals are far below one sample of any split.
        test_accuracy_pct=tuple(round(points, 4) for points in test.tolist()),
        val_accuracy_pct=tuple(round(points, 4) for points in val.tolist()),
        **{name: tuple(count.tolist()) for name, count in counts.items()},
    )
