"""Let policies play the hosts of an evaluation side by side, and score them.

An evaluation seed is one host of an iteration that no training episode has, so that host initialisation and data order
are new, and equal for every policy. Several policies share an environment and divide its rows: a host costs about a
fifth less in a population of 60 to 120 rows than in one of 10 (docs/history/experiments.md).
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
from simic.growth.life.vocabulary import Action, Stage
from simic.growth.networks.family import family_of
from simic.params import Params, Runtime, Train
from simic.training import worker_layout
from simic.training.learned import LearnedActor

# Far above any training iteration; data order and host initialisation hash it.
EVALUATION_ITERATION = 1 << 40
# Hosts of one population.
ROWS_AT_ONCE = 128
# Hosts of one population that are hosts for tables: three policies on the 432 held-out tasks of the suite.
TABLE_ROWS_AT_ONCE = 1296
# A training pass costs about three forward passes (Kaplan et al. 2020, §2.1: 6N vs 2N).
BACKWARD_AND_FORWARD = 3

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


def small_hosts(train: Train) -> bool:
    """Tell whether hosts are for tables: some hundred of them are trained in a second or two."""
    return family_of(train.host.family).reads_input


def rows_at_once(params: Params) -> int:
    """Limit the hosts of a population."""
    return TABLE_ROWS_AT_ONCE if small_hosts(params.train) else ROWS_AT_ONCE


def open_env(
    train: Train,
    rng_seed: int,
    runtime: Runtime,
    splits: tuple[Dataset, Dataset],
    env_ids: Tensor,
    device: torch.device | str,
    group: int | None = None,
) -> GrowthEnv:
    """Open an environment, its hosts shared out to the cores.

    Args:
        train: how hosts are trained.
        rng_seed: seed of the run.
        runtime: how to compute.
        splits: data to train and to validate on.
        env_ids: numbers of the hosts, int64 ``[E]``.
        device: where to compute.
        group: how many hosts run together; None: as many as suits.
    """
    device = torch.device(device)
    group = worker_layout.hosts_together(runtime, len(env_ids), device, group)
    return GrowthEnv(train, rng_seed, *splits, env_ids, device, runtime.backend, group=group)


@dataclass(frozen=True)
class EvaluationSetup:
    """Hold the hosts and held-out tasks that all policies meet; the environment has rows for several policies."""

    env: GrowthEnv
    held_out: HeldOut
    # Of the hosts, int64 [H].
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
        """Open the environment of training on other hosts and the held-out tasks.

        There are at least ``evaluate.eval_seeds`` hosts, of every task as many; two where a group has no other task,
        since an interval needs two scores.

        Args:
            params: those of the run.
            prepared: folder of the prepared data.
            device: where to compute.
            policies: how many play.
            outside: place of a width; the tasks are those from outside the suite that have it.
        """
        held_out = load_held_out(prepared, device)
        if outside is not None:
            held_out = held_out.outside[outside]

        # Every task on as many hosts.
        count = len(held_out.tasks)
        least = 2 if 1 in Counter(task.group for task in held_out.tasks).values() else 1
        hosts = count * max(least, -(-params.evaluate.eval_seeds // count))

        # Rows for as many policies as fit.
        rows = hosts * at_once(hosts, policies, rows_at_once(params))
        splits = held_out.train, held_out.val
        env = open_env(
            params.train, params.rng_seed, params.runtime, splits, torch.arange(rows), device
        )
        return cls(env, held_out, env.env_ids[:hosts] % count, data_hash(prepared), params.runtime)

    @property
    def hosts(self) -> Hosts:
        """The hosts of one policy."""
        return Hosts(self.tasks, self.env.env_ids[: len(self.tasks)], EVALUATION_ITERATION)


# --- episodes side by side -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """Hold one step of an episode."""

    situation: Situation
    action: Action
    reward: Tensor
    info: StepInfo


def of_rows(record: T, rows: slice | Tensor) -> T:
    """Select rows of every tensor in a record, and in the records within it."""

    def select(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[rows]
        if isinstance(value, Action):
            return Action(*map(select, value))
        if isinstance(value, dict):
            return {name: select(item) for name, item in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{name: select(item) for name, item in vars(value).items()})
        return value

    return select(record)


def at_once(hosts: int, policies: int, rows: int = ROWS_AT_ONCE) -> int:
    """Count the policies that share a population, so that no population is much smaller than the others.

    Args:
        hosts: of a policy.
        policies: how many there are.
        rows: about how many a population should have.
    """
    # As few populations as possible, then all of about one size.
    most = max(1, rows // hosts)
    return -(-policies // -(-policies // most))


class SideBySide:
    """Let actors share an environment: each decides the hosts ``ids [H]`` as if there were no other actor."""

    def __init__(self, actors: Sequence[Actor], ids: Tensor) -> None:
        self.actors = actors
        self.ids = ids

    def start(self, episode: Episode) -> None:
        for actor in self.actors:
            actor.start(replace(episode, env_ids=self.ids))

    def act(self, situation: Situation) -> Action:
        slices = rows_of_actors(len(self.actors), len(self.ids))
        parts = [
            actor.act(of_rows(situation, rows))
            for rows, actor in zip(slices, self.actors, strict=True)
        ]
        return Action(*(torch.cat(head) for head in zip(*parts, strict=True)))


def rows_of_actors(actors: int, hosts: int) -> list[slice]:
    """Divide the rows of an environment between actors."""
    return [slice(place * hosts, (place + 1) * hosts) for place in range(actors)]


def play_together(
    env: GrowthEnv,
    actors: Sequence[Actor],
    hosts: Hosts,
    steps: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Turn]:
    """Play one episode of every actor on every host; the environment is left at its end.

    Args:
        env: has rows for these actors; in what is left over nothing grows.
        actors: who plays.
        hosts: which hosts.
        steps: of the episode; None: the longest.
        progress: hears how many steps are done.

    Raises:
        SimicError: an actor needs a choice that ``train.actions`` closes.
    """
    for actor in actors:
        refuse_closed(env, actor)
    # Each actor has the same hosts: equal ids give equal first weights and orders of samples.
    ids = hosts.ids.to(env.device)
    parts = env.num_envs // len(hosts.ids)
    together = SideBySide([*actors, *(Static() for _ in range(parts - len(actors)))], ids)
    turns: list[Turn] = []

    def keep(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        turns.append(Turn(situation, action, reward, info))
        progress(len(turns), env.steps)

    tasks = hosts.tasks.repeat(parts)
    play(env, together, hosts.iteration, keep, tasks, ids.repeat(parts), steps)
    return turns


def in_populations(
    env: GrowthEnv,
    rows: int,
    episode: Callable[[Tensor], Tensor],
    progress: Callable[[int, int], None],
) -> Tensor:
    """Play many rows, as many side by side as the environment has hosts.

    Args:
        env: where they play.
        rows: how many there are.
        episode: plays the rows of these numbers ``[E]``, and gives ``[…, E]``.
        progress: hears how many rows are done.

    Returns:
        What ``episode`` gave, of all rows, ``[…, rows]``.
    """
    size = env.num_envs
    parts: list[Tensor] = []
    for first in range(0, rows, size):
        # The last population is filled up with rows that were played before.
        numbers = torch.arange(first, first + size) % rows
        parts.append(episode(numbers))
        progress(min(first + size, rows), rows)
    return torch.cat(parts, dim=-1)[..., :rows]


# --- scores ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Performance:
    """Hold the episodes of one policy on all hosts ``[H]``."""

    # Of the environment.
    rows: slice
    # On the test split.
    score: PerSeed
    turns: list[Turn]
    # [T, H] of a learned policy's decisions.
    probabilities: Tensor | None


def decisions(turns: Sequence[Turn]) -> Actions:
    """Write the decisions of every host, step by step: the choices of all heads, with spaces between."""
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
    # As many actors as fit share a population.
    names = list(actors)
    most = env.num_envs // len(hosts.tasks)
    for first in range(0, len(names), most):
        group = {name: actors[name] for name in names[first : first + most]}
        turns = play_together(env, [*group.values()], hosts, steps)
        # Scored at once for all actors, while the environment is at the end of their episodes.
        columns = committed(env, setup.held_out.test)
        for (name, actor), rows in zip(
            group.items(), rows_of_actors(len(group), len(hosts.tasks)), strict=True
        ):
            of_actor = [of_rows(turn, rows) for turn in turns]
            probabilities = (
                torch.stack(actor.probabilities) if isinstance(actor, LearnedActor) else None
            )
            score = score_rows(env, rows, of_actor, columns[:, rows])
            yield name, Performance(rows, score, of_actor, probabilities)


def committed(env: GrowthEnv, test: Dataset | None) -> Tensor:
    """Score the committed networks as they are now.

    Returns:
        Accuracy in points on the validation and on the test split (NaN without one), parameters and FLOPs per sample,
        ``[4, E]`` float64.
    """
    # The committed network has the FOSSILIZED seeds alone: others may still be pruned.
    fossilized = env.slots.stage == Stage.FOSSILIZED
    val_pct = env.state.measured.committed_accuracy
    test_pct = torch.full_like(val_pct, torch.nan)
    if test is not None:
        test_pct, _ = env.committed(test)
    flops = env.host.flops_per_sample + torch.where(
        fossilized, env.population.seed_flops(env.slots), 0
    ).sum(dim=1)
    params = env.host.params + torch.where(fossilized, env.state.seed_params, 0).sum(dim=1)
    return torch.stack([column.double().cpu() for column in (val_pct, test_pct, params, flops)])


def epoch_samples(train: Train, samples: int) -> int:
    """Count the samples of a task that one host trains on in one epoch."""
    available = samples // train.batch_size
    batches = available if train.batches_per_epoch == "all" else train.batches_per_epoch
    return batches * train.batch_size


def episode_flops(env: GrowthEnv, flops: Tensor) -> tuple[Tensor, Tensor]:
    """Count the FLOPs of an episode.

    Validation is counted with every ablation: an upper bound, since equal networks are run once.

    Args:
        env: where hosts grew.
        flops: per sample, summed over the steps, int64 ``[H]``.

    Returns:
        FLOPs of training and of validation, int64 ``[H]``.
    """
    samples = epoch_samples(env.train, len(env.training_data))
    networks = most_networks(env.host.slots)
    return flops * (BACKWARD_AND_FORWARD * samples), flops * (networks * len(env.validation_data))


def score_rows(env: GrowthEnv, rows: slice, turns: list[Turn], columns: Tensor) -> PerSeed:
    """Score one policy.

    Args:
        env: at the end of the episode.
        rows: of the policy.
        turns: the steps of these rows.
        columns: as ``committed`` gives them, of these rows, ``[4, H]``.
    """
    val, test, params, flops = columns
    slots = of_rows(env.slots, rows)
    training, validation = episode_flops(
        env, torch.stack([turn.info.flops for turn in turns]).sum(dim=0)
    )
    # A seed is gone when it enters PRUNED, or when another replaces it in the same step.
    removed = [
        (turn.info.stage == Stage.PRUNED) & (turn.situation.slots.stage != Stage.PRUNED)
        | turn.info.replaced
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
