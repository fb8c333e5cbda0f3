"""Growth policies meet on the same hosts, data orders and test samples; what they reach is compared seed by seed.

An evaluation seed is one environment id in an iteration namespace of its own, so that host initialisation and data
order are those of no training episode and equal for every policy. The test split is opened here and nowhere else.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from simic.data.batches import HeldOut, data_hash, load_held_out
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor, Situation, play
from simic.envs.records import StepInfo
from simic.envs.rewards import total
from simic.evaluation import endpoints, result, statistics
from simic.evaluation.costs import Meter
from simic.evaluation.history import Histories
from simic.evaluation.result import LEARNED
from simic.evaluation.static_final import Regime
from simic.evaluation.static_final import static_final as static_finals
from simic.growth.batch.shards import recovered
from simic.growth.life.vocabulary import Action, Op, Slots, Stage
from simic.params import Params
from simic.training import sharing

EVALUATION_ITERATION = 1 << 40  # far above any training iteration; data order and host initialisation hash it


@dataclass(frozen=True)
class EvaluationSetup:
    """The hosts and held-out tasks that all policies meet: each host has the task ``tasks [E]``."""

    env: GrowthEnv
    held_out: HeldOut
    tasks: Tensor
    data_sha256: str

    @classmethod
    def open(cls, params: Params, prepared: Path, device: torch.device | str = "cpu") -> Self:
        """From prepared data; the environment is the training run's but for its hosts and tasks: at least
        ``evaluate.eval_seeds`` hosts, of every held-out task as many; two where a group has no other task, since an
        interval needs two scores.
        """
        held_out = load_held_out(prepared, device)
        count = len(held_out.tasks)
        least = 2 if 1 in Counter(task.group for task in held_out.tasks).values() else 1
        env_ids = torch.arange(count * max(least, -(-params.evaluate.eval_seeds // count)))
        runtime = params.runtime
        make = sharing.population(runtime, sharing.layout(runtime, len(env_ids), torch.device(device)))
        train, val = held_out.train, held_out.val
        env = GrowthEnv(params.train, params.rng_seed, train, val, env_ids, device, runtime.backend, make)
        return cls(env, held_out, env.env_ids % count, data_hash(prepared))


@dataclass(frozen=True)
class Subject:
    """Which checkpoint is evaluated: its name, the iteration it was written after, and the host trainings of the whole
    run that it was chosen from, validation included.
    """

    checkpoint: str
    iteration: int
    trainings: int


@dataclass
class Trace:
    """What one policy did: per-step facts of all hosts, and of host 0 in full."""

    pruned: Tensor
    rollbacks: Tensor
    meter: Meter
    stages: list[list[int]] = field(default_factory=list)
    blueprints: list[list[str | None]] = field(default_factory=list)
    alphas: list[list[float]] = field(default_factory=list)
    decisions: list[result.Decision] = field(default_factory=list)
    live: list[float | None] = field(default_factory=list)
    committed: list[float | None] = field(default_factory=list)
    rollback_steps: list[int] = field(default_factory=list)


def evaluate(
    setup: EvaluationSetup,
    actors: Mapping[str, Actor],
    headroom: result.HeadroomReport,
    subject: Subject | None,
    static_final: bool = False,
    on_end: Callable[[str, Histories], None] | None = None,
) -> result.Evaluation:
    """Every actor plays the episodes that the rules of ``headroom`` played; ``learned`` is compared with each other one
    on committed test accuracy, and all stand between the common schedule and the oracle.

    ``on_end`` is called with each actor's name and account while the environment is still at the end of its episodes.
    ``static_final``: the networks that the first actor ended with are trained again from the first step.
    """
    seeds, timelines, fixed = dict[str, result.PerSeed](), dict[str, result.Timeline](), dict[str, result.Fixed]()
    final = None
    for name, actor in actors.items():
        seeds[name], timelines[name], histories = play_for_score(setup, actor)
        if on_end is not None:
            on_end(name, histories)
        final = final or (name, setup.env.slots)
    if static_final and final is not None:
        fixed = _from_the_start(setup, final[1], seeds[final[0]])
    env, everyone = setup.env, {**seeds, **headroom.policies}
    return result.Evaluation(
        checkpoint=subject.checkpoint if subject else None,
        checkpoint_iteration=subject.iteration if subject else None,
        controller_trainings=subject.trainings if subject else None,
        data_sha256=setup.data_sha256,
        rng_seed=env.rng_seed,
        eval_seeds=env.num_envs,
        episode_steps=env.steps,
        test_samples=len(setup.held_out.test),
        tasks=headroom.tasks,
        rows=headroom.rows,
        host=result.HostDescription.of(env.host),
        standings=endpoints.standings(headroom, {**seeds, **fixed}),
        policies={name: _summary(per_seed, env.host.params, env.rng_seed) for name, per_seed in everyone.items()},
        static_final=fixed,
        comparisons=_comparisons(everyone, env.rng_seed),
        timelines=timelines,
    )


def _from_the_start(setup: EvaluationSetup, final: Slots, seeds: result.PerSeed) -> dict[str, result.Fixed]:
    """At equal epochs and at equal FLOPs of training."""
    env = setup.env
    regime = Regime(env.train, setup.held_out.train, setup.held_out.test, setup.tasks, EVALUATION_ITERATION)
    spent = torch.tensor(seeds.training_flops, device=env.device)
    both = static_finals(env.population, regime, final, spent)
    names = ("static_final, equal epochs", "static_final, equal FLOPs")
    return dict(zip(names, both, strict=True))


def play_for_score(setup: EvaluationSetup, actor: Actor) -> tuple[result.PerSeed, result.Timeline, Histories]:
    """One episode of every evaluation seed under one actor, its score on the test split, and how the hosts grew."""
    trace, histories = recovered(setup.env.population, lambda: _played(setup, actor))
    return _score(setup, trace), _timeline(trace), histories


def _played(setup: EvaluationSetup, actor: Actor) -> tuple[Trace, Histories]:
    zeros = torch.zeros(setup.env.num_envs, dtype=torch.int64)
    trace, histories = Trace(zeros, zeros.clone(), Meter.of(setup.env)), Histories(setup.env)

    def add(situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        _record(trace, setup, situation, action, info)
        histories.add(situation, action, reward, info)

    play(setup.env, actor, EVALUATION_ITERATION, add, setup.tasks)
    return trace, histories


def _record(trace: Trace, setup: EvaluationSetup, situation: Situation, action: Action, info: StepInfo) -> None:
    removed = (info.stage == Stage.PRUNED) & (situation.slots.stage != Stage.PRUNED)
    trace.pruned = trace.pruned + removed.sum(dim=1).cpu()
    trace.rollbacks = trace.rollbacks + info.panicked.long().cpu()
    trace.meter.add(info)
    names = [item.name for item in setup.env.blueprints]
    after = info.blueprint[0].tolist()
    trace.stages.append(info.stage[0].tolist())
    trace.blueprints.append([names[index] if index >= 0 else None for index in after])
    trace.alphas.append([round(alpha, 6) for alpha in info.alpha[0].tolist()])
    trace.live.append(_measured(info.live_accuracy[0]))
    trace.committed.append(_measured(info.committed_accuracy[0]))
    if bool(info.panicked[0]):
        trace.rollback_steps.append(situation.step)
    op, slot = int(action.op[0]), int(action.slot[0])
    if bool(situation.alive[0]) and op != Op.WAIT:
        index = after[slot] if op == Op.GERMINATE else int(situation.slots.blueprint[0, slot])
        took_effect = int(info.effective_op[0]) == op
        trace.decisions.append(
            result.Decision(
                step=situation.step,
                op=Op(op).name,
                slot=slot,
                blueprint=names[index] if index >= 0 else None,
                refused_by_gate=None if took_effect else int(info.gate[0]),
                reward=float(total(info.components)[0]),
            )
        )


def _measured(value: Tensor) -> float | None:
    return float(value) if bool(value.isfinite()) else None


def _score(setup: EvaluationSetup, trace: Trace) -> result.PerSeed:
    env = setup.env
    slots, state = env.slots, env.state
    kept = slots.stage == Stage.FOSSILIZED
    accuracy, _ = env.committed(setup.held_out.test)
    params = env.host.params + torch.where(kept, state.seed_params, 0).sum(dim=1)
    flops = env.host.flops_per_sample + torch.where(kept, env.population.seed_flops(slots), 0).sum(dim=1)
    return result.PerSeed(
        test_accuracy_pct=_points(accuracy),
        val_accuracy_pct=_points(state.measured.committed_accuracy),
        params=tuple(params.tolist()),
        flops_per_sample=tuple(flops.tolist()),
        training_flops=tuple(trace.meter.training.tolist()),
        validation_flops=tuple(trace.meter.validation.tolist()),
        germinated=tuple(slots.germinations.sum(dim=1).tolist()),
        fossilized=tuple(kept.sum(dim=1).tolist()),
        pruned=tuple(trace.pruned.tolist()),
        rollbacks=tuple(trace.rollbacks.tolist()),
    )


def _points(accuracy: Tensor) -> tuple[float, ...]:
    """Accuracies as floats; 4 decimals are far below one sample of any split."""
    return tuple(round(value, 4) for value in accuracy.double().tolist())


def _timeline(trace: Trace) -> result.Timeline:
    return result.Timeline(
        stages=tuple(map(tuple, trace.stages)),
        blueprints=tuple(map(tuple, trace.blueprints)),
        alphas=tuple(map(tuple, trace.alphas)),
        decisions=tuple(trace.decisions),
        live_accuracy_pct=tuple(trace.live),
        committed_accuracy_pct=tuple(trace.committed),
        rollback_steps=tuple(trace.rollback_steps),
    )


def _summary(seeds: result.PerSeed, host_params: int, rng_seed: int) -> result.PolicyResult:
    accuracy, params = np.array(seeds.test_accuracy_pct), np.array(seeds.params)
    return result.PolicyResult(
        test_accuracy_pct=statistics.mean_interval(accuracy),
        test_accuracy_iqm_pct=statistics.interquartile_interval(accuracy, rng_seed),
        val_accuracy_pct=float(np.mean(seeds.val_accuracy_pct)),
        params=float(params.mean()),
        flops_per_sample=float(np.mean(seeds.flops_per_sample)),
        training_flops=float(np.mean(seeds.training_flops)),
        validation_flops=float(np.mean(seeds.validation_flops)),
        accuracy_per_kparam=float((accuracy / (params / 1000.0)).mean()),
        growth_ratio=float((params / host_params).mean()),
        germinated=float(np.mean(seeds.germinated)),
        fossilized=float(np.mean(seeds.fossilized)),
        pruned=float(np.mean(seeds.pruned)),
        rollbacks=float(np.mean(seeds.rollbacks)),
        per_seed=seeds,
    )


def _comparisons(seeds: Mapping[str, result.PerSeed], rng_seed: int) -> tuple[result.Comparison, ...]:
    """``learned`` against every other policy."""
    if LEARNED not in seeds:
        return ()
    first = seeds[LEARNED]
    found = []
    for name, second in seeds.items():
        if name == LEARNED:
            continue
        compared = statistics.compare(list(first.test_accuracy_pct), list(second.test_accuracy_pct), rng_seed)
        found.append(
            result.Comparison(
                first=LEARNED,
                second=name,
                difference_pct=compared.difference,
                p_value=compared.p_value,
                probability_of_improvement=compared.probability_of_improvement,
                minimum_detectable_pct=compared.minimum_detectable,
                seeds=compared.seeds,
            )
        )
    return tuple(found)
