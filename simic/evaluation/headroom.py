"""What there is to win before anything is learned: floors, the best common schedule, an oracle, rules written by hand.

The common schedule is chosen on the tasks of training. On the held-out tasks every schedule is played twice, on hosts
that choose and on hosts that score, so that no choice flatters itself; the scoring hosts are those of the evaluation.
Nothing here depends on the controller, so one measurement serves every training run with the same hosts.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import torch

from simic.data.batches import load_split, read_meta
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor
from simic.envs.rewards.transition import score
from simic.evaluation import endpoints
from simic.evaluation.endpoints import PATIENT, TUNED
from simic.evaluation.floors import floors
from simic.evaluation.grid import Grid, Hosts, Splits, Table, grid
from simic.evaluation.policies import BASELINES
from simic.evaluation.result import Cost, HeadroomReport, HostDescription, TaskRow, TunedRules
from simic.evaluation.rules import Tuned, known
from simic.evaluation.schedules import Schedule, every_schedule
from simic.evaluation.scoring import EVALUATION_ITERATION, EvaluationSetup, play_for_score
from simic.evaluation.search import best_common
from simic.evaluation.tuning import tune
from simic.params import Params

SEARCH_ITERATION = 1 << 43  # a namespace of its own: hosts that no training or evaluation episode has seen

Told = Callable[[str, int, int], None]  # what is played, how many host trainings of how many


def measure(params: Params, prepared: Path, device: torch.device, told: Told) -> HeadroomReport:
    """Plays the whole table; the order is that of the docstring above."""
    setup = EvaluationSetup.open(params, prepared, device, len(params.headroom.policies))
    env = setup.env
    schedules = possible_schedules(params, env)
    with closing(env):
        tuned = known_or_tuned(params, prepared, device, told)
        rules = hand_rules(params, env, tuned)
        policies = {name: done.score for name, done in play_for_score(setup, rules)}
    searched = _searched(params, prepared, schedules, device, told)
    host_params = env.host.params
    reached = score(searched.val_accuracy_pct, searched.params - host_params, host_params, params.train.price)
    common = best_common(reached)
    held_out, count = setup.held_out, len(setup.tasks)
    splits = Splits(held_out.train, held_out.val, held_out.test)

    def played(what: str, first: int) -> Grid:
        hosts = Hosts(setup.tasks, torch.arange(first, first + count), EVALUATION_ITERATION)
        return grid(params, splits, hosts, schedules, device, lambda done, rows: told(what, done, rows))

    scoring, choosing = played("hosts that score", 0), played("hosts that choose", count)
    names = [item.name for item in env.blueprints]
    found = HeadroomReport(
        data_sha256=setup.data_sha256,
        settings_sha256=endpoints.settings(params),
        rng_seed=params.rng_seed,
        host=HostDescription.of(env.host),
        max_seeds=params.train.lifecycle.max_seeds,
        param_budget=params.train.lifecycle.param_budget,
        price=params.train.price,
        tasks=tuple(TaskRow.of(task) for task in held_out.tasks),
        rows=tuple(setup.tasks.tolist()),
        schedules=tuple(schedule.name(names) for schedule in schedules),
        common=common,
        common_cost=_cost(searched),
        search_scores=tuple(reached.mean(axis=0).round(4).tolist()),
        choosing_val_pct=_rows(choosing.val_accuracy_pct),
        val_pct=_rows(scoring.val_accuracy_pct),
        test_pct=_rows(scoring.test_accuracy_pct),
        params=_rows(scoring.params),
        flops_per_sample=_rows(scoring.flops_per_sample),
        grid_cost=_cost(choosing, scoring),
        policies=policies,
        tuned=tuned,
        floors=floors(params, held_out, setup.tasks, device),
        standings={},
    )
    return found.model_copy(update={"standings": endpoints.standings(found, {})})


def known_or_tuned(params: Params, prepared: Path, device: torch.device, told: Told) -> TunedRules | None:
    """Return the rules that come with simic for these hosts and tasks, or tune them if ``headroom.tune`` asks for it;
    None where there are none or nobody plays them.
    """
    if TUNED not in params.headroom.policies:
        return None
    found = known(params)
    if found is None and params.headroom.tune:
        found = tune(params, prepared, (params.train.episode_steps,), device, told)
    return found


def hand_rules(params: Params, env: GrowthEnv, tuned: TunedRules | None) -> dict[str, Actor]:
    """Return the policies that ``headroom.policies`` names; without tuned rules the patient one stands in for them."""
    asked = params.headroom.policies
    names = dict.fromkeys(PATIENT if name == TUNED and tuned is None else name for name in asked)
    return {name: Tuned(env, tuned) if name == TUNED and tuned else BASELINES[name](env) for name in names}


def possible_schedules(params: Params, env: GrowthEnv) -> list[Schedule]:
    """Of what can grow; static is the first."""
    limit = params.train.lifecycle.max_seeds or env.host.slots
    blueprints = [of_slot.nonzero().flatten().tolist() for of_slot in env.openings]
    return every_schedule(blueprints, limit, params.headroom.steps, params.headroom.schedules)


def _searched(params: Params, prepared: Path, schedules: Sequence[Schedule], device: torch.device, told: Told) -> Grid:
    """On one host of each of so many training tasks, or as many hosts of the only one."""
    tasks = read_meta(prepared).of_group("train")
    chosen = torch.tensor([tasks[k % len(tasks)] for k in range(params.headroom.search_tasks)])
    splits = Splits(load_split(prepared, "train", device), load_split(prepared, "val", device))
    hosts = Hosts(chosen, torch.arange(len(chosen)), SEARCH_ITERATION)
    return grid(
        params, splits, hosts, schedules, device, lambda done, rows: told("common schedule, training tasks", done, rows)
    )


def _cost(*grids: Grid) -> Cost:
    return Cost(
        trainings=sum(each.val_accuracy_pct.size for each in grids),
        training_flops=float(sum(each.training_flops.sum() for each in grids)),
        validation_flops=float(sum(each.validation_flops.sum() for each in grids)),
    )


def _rows(table: Table | None) -> tuple[tuple[float, ...], ...]:
    assert table is not None
    return tuple(tuple(round(value, 4) for value in row) for row in table.tolist())
