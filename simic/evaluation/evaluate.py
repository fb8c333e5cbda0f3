"""Evaluate the trained policy on the hosts that headroom played: compare it host by host with all others, place it
between the common schedule and the oracle, show the hosts on which it won and lost most.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor
from simic.envs.rewards import total
from simic.evaluation import endpoints, intervals, result
from simic.evaluation.result import (
    BLIND,
    LEARNED,
    OUTSIDE,
    SAMPLED,
    Case,
    DecisionCase,
    HeadroomReport,
    Timeline,
)
from simic.evaluation.scoring import (
    EVALUATION_ITERATION,
    EvaluationSetup,
    Performance,
    Turn,
    decisions,
    of_rows,
    play_for_score,
)
from simic.evaluation.static_baselines import (
    Regime,
    StaticNetwork,
    from_the_start,
    open_population,
    static_final,
)
from simic.growth.life.vocabulary import Op, Slots
from simic.params import Params
from simic.training import machine
from simic.training.checkpoint import Checkpoint

Actors = Callable[[GrowthEnv], Mapping[str, Actor]]
Scores = dict[str, result.PerSeed]  # by policy

# Hosts that are shown: as many that won most as that lost most.
SHOWN = 3
COUNTS = (
    "flops_per_sample",
    "training_flops",
    "validation_flops",
    "germinated",
    "fossilized",
    "pruned",
    "rollbacks",
)


def evaluate(
    setup: EvaluationSetup,
    actors: Mapping[str, Actor],
    headroom: HeadroomReport,
    params: Params,
    checkpoint: Checkpoint,
    on_end: Callable[[str, Performance], None] | None = None,
    others: Mapping[str, result.Elsewhere] | None = None,
) -> result.Evaluation:
    """Let every actor play the episodes that the rules of the headroom played, and compare them all.

    Args:
        setup: the hosts and their tasks.
        actors: who plays, by name.
        headroom: what needs no controller, on the same hosts.
        params: those of the run.
        checkpoint: of the trained policy.
        on_end: hears an actor's name and performance while the environment is still at the end of its episodes.
        others: what ``elsewhere`` gives.
    """
    performances = dict[str, Performance]()
    final = None

    # Play; the environment is at the end of an episode when its performance is yielded.
    for name, performance in play_for_score(setup, actors, headroom.epochs):
        performances[name] = performance
        if on_end is not None:
            on_end(name, performance)
        final = final or of_rows(setup.env.slots, performance.rows)

    # Compare with the networks that the first policy ended with, and with all that headroom played.
    env = setup.env
    evaluated_on = machine.describe(params.runtime, env.device, env.population.group)
    scores = {name: performances[name].score for name in actors}
    learned = performances.get(LEARNED)
    first = next(iter(scores.values()))
    static = (
        _from_the_start(setup, final, first)
        if params.evaluate.static_final and final is not None
        else {}
    )
    policies = {**scores, **headroom.policies}
    accuracies = {name: per_seed.test_accuracy_pct for name, per_seed in policies.items()}
    return result.Evaluation(
        checkpoint=params.evaluate.checkpoint,
        checkpoint_iteration=checkpoint.manifest.iteration,
        machine=evaluated_on,
        controller_trainings=controller_trainings(params),
        data_sha256=setup.data_sha256,
        rng_seed=env.rng_seed,
        eval_seeds=len(setup.tasks),
        episode_steps=headroom.epochs,
        test_samples=len(setup.held_out.test),
        tasks=headroom.tasks,
        rows=headroom.rows,
        host=result.HostDescription.model_validate(env.host),
        standings=endpoints.standings(headroom, {**scores, **static}),
        policies={
            name: summary(per_seed, env.host.params, env.rng_seed)
            for name, per_seed in policies.items()
        },
        static_final=static,
        comparisons=intervals.compare_with_all(LEARNED, accuracies, env.rng_seed),
        others=dict(others or {}),
        actions={
            name: decisions(performances[name].turns)
            for name in (LEARNED, SAMPLED, BLIND)
            if name in performances
        },
        cases=best_and_worst(setup, headroom, learned) if learned else (),
    )


def controller_trainings(params: Params) -> int:
    """Count the host trainings that training the controller cost, validations included."""
    validations = -(-params.train.iterations // params.train.validate_every)
    return params.train.envs * (params.train.iterations + validations)


def elsewhere(
    params: Params,
    prepared: Path,
    device: torch.device,
    actors: Actors,
    headroom: HeadroomReport,
) -> dict[str, result.Elsewhere]:
    """Play the same policies in episodes of other lengths, and on the tasks from outside the suite.

    Args:
        params: those of the run.
        prepared: folder of the prepared data.
        device: where to compute.
        actors: makes the policies for an environment.
        headroom: what needs no controller, with the same lengths and tasks.
    """
    # Episodes of other lengths need no other environment: the length is an argument of the episode.
    setup = EvaluationSetup.open(params, prepared, device)
    lengths = {name: other.epochs for name, other in headroom.others.items() if name != OUTSIDE}
    scores = {name: _scores(setup, actors, epochs) for name, epochs in lengths.items()}
    # Tasks from outside do: a host is built for one width.
    widths = len(setup.held_out.outside)
    if widths:
        of_widths = [
            _outside(actors, params, prepared, device, headroom.epochs, width)
            for width in range(widths)
        ]
        scores[OUTSIDE] = {
            name: result.concatenated([part[name] for part in of_widths]) for name in of_widths[0]
        }
    # Headroom measured the same hosts, so the standings are paired.
    return {
        name: result.Elsewhere(
            epochs=headroom.others[name].epochs,
            per_seed=of_policies,
            standings=endpoints.standings(headroom.others[name], of_policies),
        )
        for name, of_policies in scores.items()
    }


def _outside(
    actors: Actors,
    params: Params,
    prepared: Path,
    device: torch.device,
    epochs: int,
    width: int,
) -> Scores:
    setup = EvaluationSetup.open(params, prepared, device, outside=width)
    return _scores(setup, actors, epochs)


def _scores(setup: EvaluationSetup, actors: Actors, epochs: int) -> Scores:
    return {
        name: performance.score
        for name, performance in play_for_score(setup, actors(setup.env), epochs)
    }


def _from_the_start(
    setup: EvaluationSetup, final: Slots, score: result.PerSeed
) -> dict[str, result.Fixed]:
    """Train the networks ``final`` at equal epochs and at equal FLOPs of training."""
    env = setup.env
    hosts = setup.hosts
    regime = Regime(
        env.train, setup.held_out.train, setup.held_out.test, hosts.tasks, EVALUATION_ITERATION
    )
    network = StaticNetwork("static_final", env.host, env.blueprints, from_the_start(final))
    training_flops = torch.tensor(score.training_flops, device=env.device)
    population = open_population(
        env.train, env.rng_seed, setup.runtime, network, hosts.ids, env.device
    )
    at_epochs, at_flops = static_final(population, regime, network.slots, training_flops, env.steps)
    return {"static_final, equal epochs": at_epochs, "static_final, equal FLOPs": at_flops}


def summary(score: result.PerSeed, host_params: int, rng_seed: int) -> result.PolicyResult:
    """Summarize a policy's values on every host.

    Args:
        score: its values, ``[H]``.
        host_params: parameters of the bare host.
        rng_seed: of the bootstrap.
    """
    accuracy = np.array(score.test_accuracy_pct)
    params = np.array(score.params)
    return result.PolicyResult(
        test_accuracy_pct=intervals.mean_interval(accuracy).within(0.0, 100.0),
        test_accuracy_iqm_pct=intervals.interquartile_interval(accuracy, rng_seed),
        val_accuracy_pct=float(np.mean(score.val_accuracy_pct)),
        params=float(params.mean()),
        accuracy_per_kparam=float((accuracy / (params / 1000.0)).mean()),
        growth_ratio=float((params / host_params).mean()),
        per_seed=score,
        **{name: float(np.mean(getattr(score, name))) for name in COUNTS},
    )


# --- episodes that are shown ---


def best_and_worst(
    setup: EvaluationSetup, headroom: HeadroomReport, performance: Performance
) -> tuple[Case, ...]:
    """Select the episodes with the largest gain over the common schedule, then those with the largest loss.

    Args:
        setup: the hosts and their tasks.
        headroom: with the scores of schedules on the same hosts.
        performance: of one policy.

    Returns:
        At most ``SHOWN`` of either sort, the largest loss last; no host twice.
    """
    # Scores of the policy and of every schedule, on the very same hosts.
    accuracy = np.array(performance.score.test_accuracy_pct)
    params = np.array(performance.score.params, dtype=np.float64)
    scores = endpoints.scores(accuracy, params, headroom)
    test_pct = np.array(headroom.test_pct)
    schedules = endpoints.scores(test_pct, np.array(headroom.params), headroom)
    # Stable: of equal gains the first host, on every machine. Half of the hosts at most, so that none is shown twice.
    order = np.argsort(schedules[:, headroom.common] - scores, kind="stable").tolist()
    count = min(SHOWN, len(order) // 2)
    oracle = endpoints.oracle_schedules(headroom)
    return tuple(
        Case(
            row=row,
            parameters=setup.held_out.tasks[headroom.rows[row]].parameters,
            score=float(scores[row]),
            common=float(schedules[row, headroom.common]),
            oracle=headroom.schedules[oracle[row]],
            oracle_score=float(schedules[row, oracle[row]]),
            timeline=timeline(setup.env, performance, row),
        )
        for row in (*order[:count], *order[len(order) - count :])
    )


def timeline(env: GrowthEnv, performance: Performance, host: int) -> Timeline:
    """Describe how one of the hosts grew.

    Args:
        env: where it grew.
        performance: the episodes of all hosts.
        host: its place among them.
    """
    names: dict[int, str | None] = {index: item.name for index, item in enumerate(env.blueprints)}
    turns = performance.turns
    infos = [turn.info for turn in turns]
    # A host that was rolled back decides nothing more, whatever the policy answers for its row.
    decided = [
        turn
        for turn in turns
        if bool(turn.situation.alive[host]) and int(turn.action.op[host]) != Op.WAIT
    ]
    return Timeline(
        stages=tuple(tuple(info.stage[host].tolist()) for info in infos),
        blueprints=tuple(tuple(map(names.get, info.blueprint[host].tolist())) for info in infos),
        decisions=tuple(
            _decision(turn, host, names, performance.probabilities) for turn in decided
        ),
        live_accuracy_pct=tuple(_measured(info.live_accuracy[host]) for info in infos),
        committed_accuracy_pct=tuple(_measured(info.committed_accuracy[host]) for info in infos),
        rollback_steps=tuple(
            turn.situation.step for turn in turns if bool(turn.info.panicked[host])
        ),
    )


def _decision(
    turn: Turn,
    host: int,
    names: Mapping[int, str | None],
    probabilities: Tensor | None,
) -> DecisionCase:
    op = int(turn.action.op[host])
    slot = int(turn.action.slot[host])
    step = turn.situation.step
    # A seed that germinates is only there after the step.
    blueprints = turn.info.blueprint if op == Op.GERMINATE else turn.situation.slots.blueprint
    took_effect = int(turn.info.effective_op[host]) == op
    return DecisionCase(
        step=step,
        op=Op(op).name,
        slot=slot,
        blueprint=names.get(int(blueprints[host, slot])),
        refused_by_gate=None if took_effect else int(turn.info.gate[host]),
        reward=float(total(turn.info.components)[host]),
        probability=None if probabilities is None else round(float(probabilities[step, host]), 6),
    )


def _measured(value: Tensor) -> float | None:
    return float(value) if bool(value.isfinite()) else None
