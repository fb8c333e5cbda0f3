"""Evaluate the trained policy on the hosts that headroom played: compare it seed by seed with all others, place it
between the common schedule and the oracle, grade its decisions.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor
from simic.evaluation import endpoints, result, statistics
from simic.evaluation.best_worst_episodes import best_and_worst
from simic.evaluation.counterfactual import CounterfactualActor, grade
from simic.evaluation.parts import NOTHING_KEPT, Parts
from simic.evaluation.result import BLIND, LEARNED, OUTSIDE, SAMPLED
from simic.evaluation.scoring import EVALUATION_ITERATION, EvaluationSetup, Performance, of_rows, play_for_score
from simic.evaluation.static_baselines import Regime, static_final
from simic.growth.life.vocabulary import Slots
from simic.params import Params
from simic.training import worker_layout

Actors = Callable[[GrowthEnv], Mapping[str, Actor]]
Scores = dict[str, result.PerSeed]  # by policy

COUNTS = ("flops_per_sample", "training_flops", "validation_flops", "germinated", "fossilized", "pruned", "rollbacks")


@dataclass(frozen=True)
class Subject:
    """The checkpoint that is evaluated: its name, the iteration it was written after, the host trainings of its whole
    run, validation included, and one unit of its critic in units of reward.
    """

    checkpoint: str
    iteration: int
    trainings: int
    reward_scale: float = 1.0


def evaluate(
    setup: EvaluationSetup,
    actors: Mapping[str, Actor],
    headroom: result.HeadroomReport,
    subject: Subject,
    from_the_start: bool = False,
    on_end: Callable[[str, Performance], None] | None = None,
    counterfactuals: Mapping[str, CounterfactualActor] | None = None,
    planted: result.PlantedGrade | None = None,
    others: Mapping[str, result.Elsewhere] | None = None,
) -> result.Evaluation:
    """Let every actor play the episodes that the rules of ``headroom`` played; compare ``learned`` with each other one
    on committed test accuracy, and place all between the common schedule and the oracle.

    ``on_end`` is called with each actor's name and performance while the environment is still at the end of its
    episodes. ``from_the_start``: the networks that the first actor ended with are trained again from the first step.
    ``counterfactuals`` are ``learned`` again with one decision another. ``others`` is what ``elsewhere`` gives.
    """
    counterfactuals = counterfactuals or {}
    played, fixed, final = dict[str, Performance](), dict[str, result.Fixed](), None
    for name, done in play_for_score(setup, {**actors, **counterfactuals}, headroom.epochs):
        played[name] = done
        if on_end is not None:
            on_end(name, done)
        final = final or of_rows(setup.env.slots, done.rows)
    seeds, learned = {name: played[name].score for name in actors}, played.get(LEARNED)
    tried = {name: (actor, played[name]) for name, actor in counterfactuals.items()}
    if from_the_start and final is not None:
        fixed = _from_the_start(setup, final, next(iter(seeds.values())))
    env, everyone = setup.env, {**seeds, **headroom.policies}
    return result.Evaluation(
        checkpoint=subject.checkpoint,
        checkpoint_iteration=subject.iteration,
        controller_trainings=subject.trainings,
        data_sha256=setup.data_sha256,
        rng_seed=env.rng_seed,
        eval_seeds=len(setup.tasks),
        episode_steps=headroom.epochs,
        test_samples=len(setup.held_out.test),
        tasks=headroom.tasks,
        rows=headroom.rows,
        host=result.HostDescription.model_validate(env.host),
        standings=endpoints.standings(headroom, {**seeds, **fixed}),
        policies={name: summary(per_seed, env.host.params, env.rng_seed) for name, per_seed in everyone.items()},
        static_final=fixed,
        comparisons=comparisons(everyone, env.rng_seed),
        counterfactuals=grade(setup, learned, tried, subject.reward_scale) if learned else {},
        planted=planted,
        others=dict(others or {}),
        actions={name: played[name].actions() for name in (LEARNED, SAMPLED, BLIND) if name in played},
        cases=best_and_worst(setup, headroom, learned) if learned else (),
    )


def elsewhere(
    params: Params,
    prepared: Path,
    device: torch.device,
    actors: Actors,
    headroom: result.HeadroomReport,
    parts: Parts = NOTHING_KEPT,
) -> dict[str, result.Elsewhere]:
    """Play the same policies in episodes of the other lengths of ``headroom``, and on the tasks from outside the suite;
    each environment gets actors of its own. ``actors`` is pickled.
    """
    setup = EvaluationSetup.open(params, prepared, device)
    with closing(setup.env):
        lengths = {name: other.epochs for name, other in headroom.others.items() if name != OUTSIDE}
        seeds = {
            name: parts.of(name, Scores, partial(_scores, setup, actors, epochs)) for name, epochs in lengths.items()
        }
    work = partial(_outside, actors, params, prepared, device, headroom.epochs)
    if widths := len(setup.held_out.outside):
        of_width = parts.of(OUTSIDE, list[Scores], lambda: worker_layout.spread(work, widths, params.runtime, device))
        seeds[OUTSIDE] = {name: result.concatenated([part[name] for part in of_width]) for name in of_width[0]}
    return {
        name: result.Elsewhere(
            epochs=headroom.others[name].epochs,
            tasks=headroom.others[name].tasks,
            rows=headroom.others[name].rows,
            per_seed=own,
            standings=endpoints.standings(headroom.others[name], own),
        )
        for name, own in seeds.items()
    }


def _outside(actors: Actors, params: Params, prepared: Path, device: torch.device, epochs: int, width: int) -> Scores:
    setup = EvaluationSetup.open(params, prepared, device, outside=width)
    with closing(setup.env):
        return _scores(setup, actors, epochs)


def _scores(setup: EvaluationSetup, actors: Actors, epochs: int) -> Scores:
    return {name: done.score for name, done in play_for_score(setup, actors(setup.env), epochs)}


def _from_the_start(setup: EvaluationSetup, final: Slots, seeds: result.PerSeed) -> dict[str, result.Fixed]:
    """Train the networks ``final`` at equal epochs and at equal FLOPs of training."""
    env, hosts, runtime = setup.env, setup.hosts, setup.runtime
    regime = Regime(env.train, setup.held_out.train, setup.held_out.test, hosts.tasks, EVALUATION_ITERATION)
    spent = torch.tensor(seeds.training_flops, device=env.device)
    compose = worker_layout.population(runtime, worker_layout.layout(runtime, len(spent), env.device))
    described = env.host, env.blueprints, hosts.ids, env.rng_seed, env.train.host_optimizer, env.device
    with closing(compose(*described, runtime.backend)) as population:
        both = static_final(population, regime, final, spent, env.steps)
    return dict(zip(("static_final, equal epochs", "static_final, equal FLOPs"), both, strict=True))


def summary(seeds: result.PerSeed, host_params: int, rng_seed: int) -> result.PolicyResult:
    """Return what is reported of a policy beside its values for every seed."""
    accuracy, params = np.array(seeds.test_accuracy_pct), np.array(seeds.params)
    return result.PolicyResult(
        test_accuracy_pct=statistics.mean_interval(accuracy),
        test_accuracy_iqm_pct=statistics.interquartile_interval(accuracy, rng_seed),
        val_accuracy_pct=float(np.mean(seeds.val_accuracy_pct)),
        params=float(params.mean()),
        accuracy_per_kparam=float((accuracy / (params / 1000.0)).mean()),
        growth_ratio=float((params / host_params).mean()),
        per_seed=seeds,
        **{name: float(np.mean(getattr(seeds, name))) for name in COUNTS},
    )


def comparisons(seeds: Mapping[str, result.PerSeed], rng_seed: int) -> tuple[result.PolicyComparison, ...]:
    """Compare ``learned`` with every other policy."""
    if LEARNED not in seeds:
        return ()
    return tuple(_comparison(seeds, name, rng_seed) for name in seeds if name != LEARNED)


def _comparison(seeds: Mapping[str, result.PerSeed], other: str, rng_seed: int) -> result.PolicyComparison:
    first, second = (list(seeds[name].test_accuracy_pct) for name in (LEARNED, other))
    compared = statistics.compare(first, second, rng_seed)
    return result.PolicyComparison(
        first=LEARNED,
        second=other,
        difference_pct=compared.difference,
        p_value=compared.p_value,
        probability_of_improvement=compared.probability_of_improvement,
        minimum_detectable_pct=compared.minimum_detectable,
        seeds=compared.seeds,
    )
