"""The trained policy beside everything that headroom played on the same hosts: compared seed by seed, placed between
the common schedule and the oracle, its decisions graded.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch

from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor
from simic.evaluation import endpoints, result, statistics
from simic.evaluation.cases import won_and_lost
from simic.evaluation.counterfactual import grade
from simic.evaluation.departing import Departing
from simic.evaluation.result import LEARNED, OUTSIDE, SAMPLED
from simic.evaluation.scoring import EVALUATION_ITERATION, EvaluationSetup, Performance, play_for_score
from simic.evaluation.side_by_side import of_rows
from simic.evaluation.static_final import Regime
from simic.evaluation.static_final import static_final as static_finals
from simic.growth.life.vocabulary import Slots
from simic.training import worker_layout


@dataclass(frozen=True)
class Subject:
    """Which checkpoint is evaluated: its name, the iteration it was written after, the host trainings of the whole run
    that it was chosen from, validation included, and what one unit of its critic is in units of reward.
    """

    checkpoint: str
    iteration: int
    trainings: int
    reward_scale: float = 1.0


def evaluate(
    setup: EvaluationSetup,
    actors: Mapping[str, Actor],
    headroom: result.HeadroomReport,
    subject: Subject | None,
    static_final: bool = False,
    on_end: Callable[[str, Performance], None] | None = None,
    departing: Mapping[str, Departing] | None = None,
    planted: result.PlantedGrade | None = None,
    others: Mapping[str, result.Elsewhere] | None = None,
) -> result.Evaluation:
    """Every actor plays the episodes that the rules of ``headroom`` played; ``learned`` is compared with each other one
    on committed test accuracy, and all stand between the common schedule and the oracle.

    ``on_end`` is called with each actor's name and performance while the environment is still at the end of its
    episodes. ``static_final``: the networks that the first actor ended with are trained again from the first step.
    ``departing`` are ``learned`` again with one decision another. ``others`` is what ``elsewhere`` gives.
    """
    played, fixed, final = dict[str, Performance](), dict[str, result.Fixed](), None
    everyone = {**actors, **(departing or {})}
    for name, done in play_for_score(setup, everyone, headroom.epochs):
        played[name] = done
        if on_end is not None:
            on_end(name, done)
        final = final or of_rows(setup.env.slots, done.rows)
    seeds, learned = {name: played[name].score for name in actors}, played.get(LEARNED)
    tried = {name: (actor, played[name]) for name, actor in (departing or {}).items()}
    if static_final and final is not None:
        fixed = _from_the_start(setup, final, next(iter(seeds.values())))
    env, everyone = setup.env, {**seeds, **headroom.policies}
    return result.Evaluation(
        checkpoint=subject.checkpoint if subject else None,
        checkpoint_iteration=subject.iteration if subject else None,
        controller_trainings=subject.trainings if subject else None,
        data_sha256=setup.data_sha256,
        rng_seed=env.rng_seed,
        eval_seeds=len(setup.tasks),
        episode_steps=headroom.epochs,
        test_samples=len(setup.held_out.test),
        tasks=headroom.tasks,
        rows=headroom.rows,
        host=result.HostDescription.of(env.host),
        standings=endpoints.standings(headroom, {**seeds, **fixed}),
        policies={name: summary(per_seed, env.host.params, env.rng_seed) for name, per_seed in everyone.items()},
        static_final=fixed,
        comparisons=comparisons(everyone, env.rng_seed),
        counterfactuals=grade(setup, learned, tried, subject.reward_scale if subject else 1.0) if learned else {},
        planted=planted,
        others=dict(others or {}),
        actions={name: played[name].actions() for name in (LEARNED, SAMPLED) if name in played},
        cases=won_and_lost(setup, headroom, learned) if learned else (),
    )


def elsewhere(
    setup: EvaluationSetup,
    actors: Callable[[GrowthEnv], Mapping[str, Actor]],
    headroom: result.HeadroomReport,
    outside: Iterable[EvaluationSetup],
) -> dict[str, result.Elsewhere]:
    """The same policies in episodes of the other lengths of ``headroom``, and on the tasks ``outside`` the suite, one
    setup after another; each environment gets actors of its own.
    """
    seeds: dict[str, dict[str, result.PerSeed]] = {}
    for name, other in headroom.others.items():
        if name != OUTSIDE:
            done = play_for_score(setup, actors(setup.env), other.epochs)
            seeds[name] = {policy: performance.score for policy, performance in done}
    parts = [
        {name: done.score for name, done in play_for_score(each, actors(each.env), headroom.epochs)} for each in outside
    ]
    if parts:
        seeds[OUTSIDE] = {name: result.concatenated([part[name] for part in parts]) for name in parts[0]}
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


def _from_the_start(setup: EvaluationSetup, final: Slots, seeds: result.PerSeed) -> dict[str, result.Fixed]:
    """At equal epochs and at equal FLOPs of training."""
    env, hosts = setup.env, setup.hosts
    regime = Regime(env.train, setup.held_out.train, setup.held_out.test, hosts.tasks, EVALUATION_ITERATION)
    spent = torch.tensor(seeds.training_flops, device=env.device)
    compose = worker_layout.population(setup.runtime, worker_layout.layout(setup.runtime, len(spent), env.device))
    with closing(
        compose(
            env.host, env.blueprints, hosts.ids, env.rng_seed, env.train.host_optimizer, env.device,
            setup.runtime.backend,
        )
    ) as population:  # fmt: skip
        both = static_finals(population, regime, final, spent, env.steps)
    names = ("static_final, equal epochs", "static_final, equal FLOPs")
    return dict(zip(names, both, strict=True))


def summary(seeds: result.PerSeed, host_params: int, rng_seed: int) -> result.PolicyResult:
    """What is reported of a policy beside its values for every seed."""
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


def comparisons(seeds: Mapping[str, result.PerSeed], rng_seed: int) -> tuple[result.PolicyComparison, ...]:
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
            result.PolicyComparison(
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
