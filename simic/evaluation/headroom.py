"""Measure what there is to win before anything is learned: static networks, schedules, an oracle, hand rules.

The common schedule is chosen on the tasks of training. On the held-out tasks every schedule is played twice, on hosts
that choose and on hosts that score, so that no choice flatters itself; the scoring hosts are those of the evaluation.
Nothing here depends on the controller, so one measurement serves every training run with the same hosts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from simic.data.batches import load_split, read_meta
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor
from simic.envs.rewards import score
from simic.evaluation import endpoints
from simic.evaluation.endpoints import PATIENT, TUNED
from simic.evaluation.policies import BASELINES, RANDOM, Static
from simic.evaluation.result import (
    OUTSIDE,
    Actions,
    Fixed,
    HeadroomReport,
    HostDescription,
    PerSeed,
    TaskRow,
    TunedRules,
    joined,
)
from simic.evaluation.rules import known, tuned_actor
from simic.evaluation.schedules import Grid, OpenLoop, Schedule, Table, every_schedule, grids
from simic.evaluation.scoring import (
    EVALUATION_ITERATION,
    EvaluationSetup,
    Hosts,
    decisions,
    open_env,
    play_for_score,
    play_together,
)
from simic.evaluation.static_baselines import static_baselines
from simic.params import Params, RuleName
from simic.progress import Progress
from simic.training.growth_task import VALIDATION_ITERATION

# Hosts that no training or evaluation episode has seen.
SEARCH_ITERATION = 1 << 43


@dataclass(frozen=True)
class Common:
    """Hold what the measurements on all tasks share; ``searched`` has a grid on tasks of training by length."""

    params: Params
    rules: TunedRules | None
    schedules: list[Schedule]
    searched: dict[int, Grid]
    device: torch.device


def measure(
    params: Params, prepared: Path, device: torch.device, progress: Progress
) -> HeadroomReport:
    """Measure the headroom for every length of episode, and on the tasks from outside the suite for the first.

    Args:
        params: those of the run.
        prepared: folder of the prepared data.
        device: where to compute.
        progress: hears how many host trainings are done.
    """
    policies = len(params.headroom.policies)
    setup = EvaluationSetup.open(params, prepared, device, policies)
    # Schedules are searched on tasks of training, and measured on all held-out tasks of the suite.
    schedules = possible_schedules(params, setup.env)
    searched = search_schedules(params, prepared, schedules, device, progress)
    common = Common(params, tuned_rules(params), schedules, searched, device)
    reports = measure_tasks(common, setup, params.lengths, progress)
    primary, *lengths = params.lengths
    others = {f"{length} epochs": reports[length] for length in lengths}

    # Tasks from outside, one width after the other.
    widths = len(setup.held_out.outside)
    if widths:
        progress("tables from outside, widths", 0, widths)
        of_widths = [measure_outside(common, prepared, width) for width in range(widths)]
        others[OUTSIDE] = joined(of_widths)

    first = reports[primary]
    validation = score_on_validation(common, prepared, schedules[first.common])
    others = {name: with_standings(record) for name, record in others.items()}
    whole = first.model_copy(update={"others": others, "validation": validation})
    return with_standings(whole)


def with_standings(record: HeadroomReport) -> HeadroomReport:
    """Place all policies of a report."""
    return record.model_copy(update={"standings": endpoints.standings(record, {})})


# --- one function for each measurement ---


def search_schedules(
    params: Params,
    prepared: Path,
    schedules: Sequence[Schedule],
    device: torch.device,
    progress: Progress,
) -> dict[int, Grid]:
    """Play every schedule on one host of each of the first ``search_tasks`` training tasks; fewer tasks take turns.

    Args:
        params: those of the run; ``headroom.search_tasks`` says how many tasks.
        prepared: folder of the prepared data.
        schedules: the schedules.
        device: where to compute.
        progress: hears how many host trainings are done.

    Returns:
        A grid by length of the episodes.
    """
    tasks = read_meta(prepared).of_group("train")
    host_tasks = torch.tensor(
        [tasks[number % len(tasks)] for number in range(params.headroom.search_tasks)]
    )
    splits = load_split(prepared, "train", device), load_split(prepared, "val", device)
    hosts = Hosts(host_tasks, torch.arange(len(host_tasks)), SEARCH_ITERATION)
    of_hosts = partial(progress, "common schedule, training tasks")
    return grids(params, splits, None, hosts, schedules, device, params.lengths, of_hosts)


def measure_outside(common: Common, prepared: Path, width: int) -> HeadroomReport:
    """Measure the tasks from outside the suite that have one of their widths, for the first length of episode.

    Args:
        common: what all measurements share.
        prepared: folder of the prepared data.
        width: place of the width among those of the tasks from outside.
    """
    length = common.params.lengths[0]
    setup = EvaluationSetup.open(common.params, prepared, common.device, outside=width)
    return measure_tasks(common, setup, [length])[length]


def measure_tasks(
    common: Common,
    setup: EvaluationSetup,
    lengths: Sequence[int],
    progress: Progress = lambda *_: None,
) -> dict[int, HeadroomReport]:
    """Measure tasks of one width.

    Args:
        common: what all measurements share.
        setup: the tasks and their hosts.
        lengths: of the episodes, in epochs.
        progress: hears how many host trainings are done.

    Returns:
        A report without standings, by length.
    """
    # Hand rules look at the time left, so they play every length.
    params = common.params
    held_out = setup.held_out
    rules = {length: play_rules(common, setup, length) for length in lengths}
    # Hosts that score, which are those of the evaluation, and after them those that choose: all at once.
    hosts = Hosts(setup.tasks.repeat(2), torch.arange(2 * len(setup.tasks)), EVALUATION_ITERATION)
    splits = held_out.train, held_out.val
    of_hosts = partial(progress, "schedules, held-out tasks")
    tables = grids(
        params, splits, held_out.test, hosts, common.schedules, common.device, lengths, of_hosts
    )
    static = static_baselines(params, held_out, setup.tasks, common.device, lengths)
    return {
        length: report(common, setup, length, tables[length], rules[length], static[length])
        for length in lengths
    }


def play_rules(
    common: Common, setup: EvaluationSetup, length: int
) -> dict[str, tuple[PerSeed, Actions]]:
    """Let the hand rules play; random play only on the suite's tasks, at the first length.

    Args:
        common: what all measurements share.
        setup: the tasks and their hosts.
        length: of the episodes, in epochs.

    Returns:
        Scores and decisions by name of the rule.
    """
    rules = hand_rules(common.params.headroom.policies, setup.env, common.rules)
    if setup.held_out.tasks[0].group == OUTSIDE or length != common.params.lengths[0]:
        rules.pop(RANDOM, None)
    performances = play_for_score(setup, rules, length)
    return {
        name: (performance.score, decisions(performance.turns))
        for name, performance in performances
    }


def score_on_validation(common: Common, prepared: Path, schedule: Schedule) -> dict[str, float]:
    """Score what needs no controller on the tasks that choose the checkpoint: what training's curve has to pass.

    Episodes are as long as those of training's validation. Empty where there are no such tasks.

    Args:
        common: what all measurements share.
        prepared: folder of the prepared data.
        schedule: the common one.
    """
    params = common.params
    tasks = read_meta(prepared).of_group("val")
    if not tasks:
        return {}
    splits = (
        load_split(prepared, "train", common.device),
        load_split(prepared, "val", common.device),
    )
    # Two schedules and a hand rule play side by side: the tuned one, or the patient one that stands in for it.
    players = 3
    rows = torch.arange(players * len(tasks))
    env = open_env(params.train, params.rng_seed, params.runtime, splits, rows, common.device)
    actors: dict[str, Actor] = {"static": Static(), "common": OpenLoop([schedule] * len(tasks))}
    actors |= hand_rules((TUNED,), env, common.rules)
    hosts = Hosts(torch.tensor(tasks), rows[: len(tasks)], VALIDATION_ITERATION)
    turns = play_together(env, list(actors.values()), hosts, params.train.middle_episode)
    means = turns[-1].info.score.view(players, len(tasks)).mean(dim=1)
    return dict(zip(actors, [round(mean, 4) for mean in means.tolist()], strict=True))


def report(
    common: Common,
    setup: EvaluationSetup,
    length: int,
    tables: Grid,
    rules: Mapping[str, tuple[PerSeed, Actions]],
    static: dict[str, Fixed],
) -> HeadroomReport:
    """Put the measurements on the tasks of a setup into one record, still without standings.

    Args:
        common: what all measurements share.
        setup: the tasks and their hosts.
        length: of the episodes.
        tables: of all schedules, on the hosts that score and then on those that choose.
        rules: scores and actions of the hand rules, by name.
        static: networks that never grew, by name.
    """
    params = common.params
    host = setup.env.host
    count = len(setup.tasks)
    # The common schedule is the one with the best mean score on the validation splits of training's tasks.
    searched = common.searched[length]
    search_scores = score(
        searched.val_accuracy_pct, searched.params - host.params, host.params, params.train.price
    )
    search_scores = search_scores.round(4)
    names = [item.name for item in setup.env.blueprints]
    return HeadroomReport(
        data_sha256=setup.data_sha256,
        rng_seed=params.rng_seed,
        epochs=length,
        host=HostDescription.model_validate(host),
        max_seeds=params.train.lifecycle.max_seeds,
        param_budget=params.train.lifecycle.param_budget,
        price=params.train.price,
        tasks=tuple(TaskRow.model_validate(task) for task in setup.held_out.tasks),
        rows=tuple(setup.tasks.tolist()),
        schedules=tuple(schedule.name(names) for schedule in common.schedules),
        common=int(search_scores.mean(axis=0).argmax()),
        common_cost=searched.params.size,
        search_scores=rounded(search_scores),
        # Of the tables the first rows are of the hosts that score, the others of those that choose.
        choosing_val_pct=rounded(tables.val_accuracy_pct[count:]),
        val_pct=rounded(tables.val_accuracy_pct[:count]),
        test_pct=rounded(tables.test_accuracy_pct[:count]),
        params=rounded(tables.params[:count]),
        flops_per_sample=rounded(tables.flops_per_sample[:count]),
        grid_cost=tables.params.size,
        policies={name: scores for name, (scores, _) in rules.items()},
        actions={name: actions for name, (_, actions) in rules.items()},
        tuned=common.rules,
        floors=static,
        standings={},
    )


# --- who plays ---


def tuned_rules(params: Params) -> TunedRules | None:
    """Look up the rules that come with simic for these hosts and tasks; None: there are none, or ``headroom.policies``
    does not name them, and the patient rule plays in their place.
    """
    return known(params) if TUNED in params.headroom.policies else None


def hand_rules(
    names: Sequence[RuleName], env: GrowthEnv, tuned: TunedRules | None
) -> dict[str, Actor]:
    """Make the policies of these names.

    Args:
        names: of hand rules.
        env: where they play.
        tuned: what ``tuned_rule`` plays; None: the patient rule stands in for it.
    """
    rules: dict[str, Actor] = {}
    for name in names:
        if name == TUNED and tuned is not None:
            rules[TUNED] = tuned_actor(env, tuned)
        else:
            rule = PATIENT if name == TUNED else name
            rules[rule] = BASELINES[rule](env)
    return rules


def possible_schedules(params: Params, env: GrowthEnv) -> list[Schedule]:
    """List the schedules of what can grow; static is the first."""
    limit = params.train.lifecycle.max_seeds or env.host.slots
    blueprints = [of_slot.nonzero().flatten().tolist() for of_slot in env.openings]
    return every_schedule(blueprints, limit, params.headroom.steps, params.headroom.schedules)


def rounded(table: Table) -> tuple[tuple[float, ...], ...]:
    """Round a table to four decimals, as rows."""
    return tuple(tuple(round(value, 4) for value in row) for row in table.tolist())
