"""Who plays the hosts of an evaluation, and what they reach there.

An evaluation seed is one host in an iteration namespace of its own, so that host initialisation and data order are
those of no training episode and equal for every policy. The test split is opened here and nowhere else.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from simic.data.batches import HeldOut, data_hash, load_held_out
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor
from simic.evaluation.costs import Meter
from simic.evaluation.grid import Hosts, rows_at_once
from simic.evaluation.history import Histories
from simic.evaluation.result import Actions, PerSeed
from simic.evaluation.side_by_side import SideBySide, Turn, at_once, of_rows, play_together
from simic.growth.batch.shards import recovered
from simic.growth.life.vocabulary import Stage
from simic.params import Params, Runtime
from simic.training import memory_estimate, worker_layout
from simic.training.learned import LearnedActor

EVALUATION_ITERATION = 1 << 40  # far above any training iteration; data order and host initialisation hash it


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
    def open(cls, params: Params, prepared: Path, device: torch.device | str = "cpu", policies: int = 1) -> Self:
        """From prepared data, for so many policies, on held-out tasks of the width that training knows."""
        held_out = load_held_out(prepared, device)
        return cls.on(params, held_out, prepared, device, policies)

    def elsewhere(self, params: Params, prepared: Path, policies: int) -> "Iterator[EvaluationSetup]":
        """On the tasks from outside the suite, one setup for each of their widths; each is closed before the next."""
        for held_out in self.held_out.outside:
            setup = type(self).on(in_one_process(params), held_out, prepared, self.env.device, policies)
            with closing(setup.env):
                yield setup

    @classmethod
    def on(cls, params: Params, held_out: HeldOut, prepared: Path, device: torch.device | str, policies: int) -> Self:
        """The environment is the training run's but for its hosts and tasks: at least ``evaluate.eval_seeds`` hosts, of
        every held-out task as many; two where a group has no other task, since an interval needs two scores.
        """
        count = len(held_out.tasks)
        least = 2 if 1 in Counter(task.group for task in held_out.tasks).values() else 1
        hosts = count * max(least, -(-params.evaluate.eval_seeds // count))
        rows = hosts * at_once(hosts, policies, rows_at_once(params))
        memory_estimate.refuse_playing(params, prepared, rows, torch.device(device))
        runtime = params.runtime
        make = worker_layout.population(runtime, worker_layout.layout(runtime, rows, torch.device(device)))
        train, val = held_out.train, held_out.val
        env = GrowthEnv(params.train, params.rng_seed, train, val, torch.arange(rows), device, runtime.backend, make)
        return cls(env, held_out, env.env_ids[:hosts] % count, data_hash(prepared), runtime)

    @property
    def hosts(self) -> Hosts:
        """Those of every policy."""
        return Hosts(self.tasks, self.env.env_ids[: len(self.tasks)], EVALUATION_ITERATION)


def in_one_process(params: Params) -> Params:
    """For a few hosts: no process is worth starting for them."""
    return params.model_copy(update={"runtime": params.runtime.model_copy(update={"processes": 1})})


@dataclass(frozen=True)
class Performance:
    """What one policy did on all hosts ``[H]``: its score on the test split, and every step; ``rows`` are its own in
    the environment.
    """

    rows: slice
    score: PerSeed
    turns: list[Turn]
    probabilities: Tensor | None  # [T, H] of what a learned policy did
    values: Tensor | None  # [T, H] that it expected

    def actions(self) -> Actions:
        """What was decided, by host and step."""
        decided = torch.stack([torch.stack(tuple(turn.action), dim=1) for turn in self.turns], dim=1)
        return tuple(tuple(" ".join(map(str, step)) for step in host) for host in decided.tolist())

    def histories(self, env: GrowthEnv) -> Histories:
        """How the hosts grew."""
        told = Histories(env, self.rows.stop - self.rows.start)
        for turn in self.turns:
            told.add(turn.situation, turn.action, turn.reward, turn.info)
        return told


def play_for_score(
    setup: EvaluationSetup, actors: Mapping[str, Actor], steps: int | None = None
) -> Iterator[tuple[str, Performance]]:
    """Every actor's episode of ``steps`` (default: the longest), in their order. While one is told of, the environment
    is at the end of it.
    """
    env, names = setup.env, list(actors)
    size = env.num_envs // len(setup.tasks)
    for first in range(0, len(names), size):
        playing = names[first : first + size]
        chosen = [actors[name] for name in playing]
        turns = recovered(env.population, lambda chosen=chosen: play_together(env, chosen, setup.hosts, steps))
        accuracy, _ = env.committed(setup.held_out.test)
        places = SideBySide(chosen, setup.hosts.ids)
        for place, name in enumerate(playing):
            rows, actor = places.rows(place), chosen[place]
            own = [of_rows(turn, rows) for turn in turns]
            thought = isinstance(actor, LearnedActor)
            sure, expected = map(torch.stack, (actor.probabilities, actor.values)) if thought else (None, None)
            yield name, Performance(rows, _score(env, rows, own, accuracy[rows]), own, sure, expected)


def _score(env: GrowthEnv, rows: slice, turns: list[Turn], accuracy: Tensor) -> PerSeed:
    slots, kept = of_rows(env.slots, rows), env.slots.stage[rows] == Stage.FOSSILIZED
    params = env.host.params + torch.where(kept, env.state.seed_params[rows], 0).sum(dim=1)
    flops = env.host.flops_per_sample + torch.where(kept, env.population.seed_flops(slots), 0).sum(dim=1)
    meter = Meter.of(env, len(accuracy))
    for turn in turns:
        meter.add(turn.info)
    return PerSeed(
        test_accuracy_pct=_points(accuracy),
        val_accuracy_pct=_points(env.state.measured.committed_accuracy[rows]),
        params=tuple(params.tolist()),
        flops_per_sample=tuple(flops.tolist()),
        training_flops=tuple(meter.training.tolist()),
        validation_flops=tuple(meter.validation.tolist()),
        germinated=tuple(slots.germinations.sum(dim=1).tolist()),
        fossilized=tuple(kept.sum(dim=1).tolist()),
        pruned=_total(_pruned(turn) for turn in turns),
        rollbacks=_total(turn.info.panicked for turn in turns),
    )


def _pruned(turn: Turn) -> Tensor:
    """Seeds ``[H]`` that one step removed."""
    pruned = (turn.info.stage == Stage.PRUNED) & (turn.situation.slots.stage != Stage.PRUNED)
    return (pruned | turn.info.replaced).sum(dim=1)


def _total(counts: Iterable[Tensor]) -> tuple[int, ...]:
    """Over the steps, of each host."""
    return tuple(torch.stack(list(counts)).sum(dim=0).tolist())


def _points(accuracy: Tensor) -> tuple[float, ...]:
    """Accuracies as floats; 4 decimals are far below one sample of any split."""
    return tuple(round(value, 4) for value in accuracy.double().tolist())
