"""What there is to win before anything is learned: static networks, the best common schedule, an oracle, hand rules.

The common schedule is chosen on the tasks of training. On the held-out tasks every schedule is played twice, on hosts
that choose and on hosts that score, so that no choice flatters itself; the scoring hosts are those of the evaluation.
Nothing here depends on the controller, so one measurement serves every training run with the same hosts.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from simic.data.batches import load_split, read_meta
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor
from simic.envs.rewards import score
from simic.evaluation import endpoints
from simic.evaluation.endpoints import PATIENT, TUNED
from simic.evaluation.parts import NOTHING_KEPT, Parts
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
    in_one_process,
    open_env,
    play_for_score,
    play_together,
)
from simic.evaluation.static_baselines import static_baselines
from simic.params import Params, RuleName
from simic.progress import Progress
from simic.training import worker_layout
from simic.training.growth_task import VALIDATION_ITERATION

Played = dict[str, tuple[PerSeed, Actions]]  # by rule
SEARCH_ITERATION = 1 << 43  # a namespace of its own: hosts that no training or evaluation episode has seen


def measure(
    params: Params, prepared: Path, device: torch.device, told: Progress, parts: Parts = NOTHING_KEPT
) -> HeadroomReport:
    """Play everything for every length of episode, and the tasks from outside the suite for the first; go on after the
    ``parts`` that are there.
    """
    setup = EvaluationSetup.open(params, prepared, device, len(params.headroom.policies))
    primary, *lengths = params.lengths
    schedules = possible_schedules(params, setup.env)
    tuned = tuned_rules(params)
    searched = parts.of("searched", dict[int, Grid], lambda: _searched(params, prepared, schedules, device, told))
    ground = _Ground(params, tuned, schedules, searched, device, told)
    with closing(setup.env):
        reports = ground.on(setup, (primary, *lengths), parts)
    others = {f"{length} epochs": reports[length] for length in lengths}
    ground = replace(ground, params=in_one_process(params), told=_silent)
    if widths := len(setup.held_out.outside):
        told("tables from outside, widths", 0, widths)
        measured = partial(_outside, ground, prepared)
        others[OUTSIDE] = parts.of(
            "outside",
            HeadroomReport,
            lambda: joined(worker_layout.spread(measured, widths, params.runtime, device)),
        )
    validation = _on_validation(params, prepared, tuned, reports[primary], device)
    others = {name: _placed(each) for name, each in others.items()}
    return _placed(reports[primary].model_copy(update={"others": others, "validation": validation}))


def _outside(ground: "_Ground", prepared: Path, width: int) -> HeadroomReport:
    """Measure the tasks from outside the suite that have one of their widths, for the first length of episode."""
    setup = EvaluationSetup.open(ground.params, prepared, ground.device, outside=width)
    length = ground.params.lengths[0]
    with closing(setup.env):
        return ground.on(setup, (length,))[length]


def _silent(what: str, done: int, of: int) -> None:
    """Tell nobody: in a process of its own there is nobody to tell."""


def _placed(report: HeadroomReport) -> HeadroomReport:
    return report.model_copy(update={"standings": endpoints.standings(report, {})})


def _searched(
    params: Params, prepared: Path, schedules: Sequence[Schedule], device: torch.device, told: Progress
) -> dict[int, Grid]:
    """Play every schedule on one host of each of so many training tasks, or on as many hosts of the only one; return
    the grids by length of the episodes.
    """
    tasks = read_meta(prepared).of_group("train")
    chosen = torch.tensor([tasks[k % len(tasks)] for k in range(params.headroom.search_tasks)])
    splits = load_split(prepared, "train", device), load_split(prepared, "val", device)
    hosts = Hosts(chosen, torch.arange(len(chosen)), SEARCH_ITERATION)
    progress = partial(told, "common schedule, training tasks")
    return grids(params, splits, None, hosts, schedules, device, params.lengths, progress)


def _on_validation(
    params: Params, prepared: Path, tuned: TunedRules | None, report: HeadroomReport, device: torch.device
) -> dict[str, float]:
    """Return mean scores on the tasks that choose the checkpoint, in episodes as long as training's validation has:
    what the curve of training has to pass. Empty where there are no such tasks.
    """
    tasks = read_meta(prepared).of_group("val")
    if not tasks:
        return {}
    count = len(tasks)
    splits, rows = (load_split(prepared, "train", device), load_split(prepared, "val", device)), torch.arange(3 * count)
    env = open_env(params.train, params.rng_seed, params.runtime, splits, rows, device)
    names = [item.name for item in env.blueprints]
    common = OpenLoop([Schedule.named(report.schedules[report.common], names, env.host.slots)] * count)
    actors: dict[str, Actor] = {"static": Static(), "common": common} | hand_rules((TUNED,), env, tuned)
    hosts = Hosts(torch.tensor(tasks), rows[:count], VALIDATION_ITERATION)
    with closing(env):
        *_, last = play_together(env, list(actors.values()), hosts, params.train.middle_episode)
        reached = last.info.score.view(3, count).mean(dim=1)
    return dict(zip(actors, [round(value, 4) for value in reached.tolist()], strict=True))


@dataclass(frozen=True)
class _Ground:
    """What is the same for all tasks: the schedules, how they did on tasks of training, the tuned rules."""

    params: Params
    tuned: TunedRules | None
    schedules: list[Schedule]
    searched: dict[int, Grid]
    device: torch.device
    told: Progress

    def on(
        self, setup: EvaluationSetup, lengths: Sequence[int], parts: Parts = NOTHING_KEPT
    ) -> dict[int, HeadroomReport]:
        """Measure tasks of one width; return reports, still without standings, by length of the episodes."""
        params, held_out, count = self.params, setup.held_out, len(setup.tasks)
        rules = hand_rules(params.headroom.policies, setup.env, self.tuned)
        # What random play is worth is asked once, of the tasks and the length that come first.
        others = {name: rule for name, rule in rules.items() if name != RANDOM}
        first = None if held_out.tasks[0].group == OUTSIDE else params.lengths[0]

        def play_rules(length: int) -> Played:
            asked = rules if length == first else others
            return {name: (done.score, decisions(done.turns)) for name, done in play_for_score(setup, asked, length)}

        played = {
            length: parts.of(f"rules, {length} epochs", Played, partial(play_rules, length)) for length in lengths
        }
        # Hosts that choose and hosts that score, all at once.
        hosts = Hosts(setup.tasks.repeat(2), torch.arange(2 * count), EVALUATION_ITERATION)
        splits = held_out.train, held_out.val
        progress = partial(self.told, "schedules, held-out tasks")
        of_schedules = parts.of(
            "schedules",
            dict[int, Grid],
            lambda: grids(params, splits, held_out.test, hosts, self.schedules, self.device, lengths, progress),
        )
        static = parts.of(
            "static",
            dict[int, dict[str, Fixed]],
            lambda: static_baselines(params, held_out, setup.tasks, self.device, lengths),
        )
        return {
            length: self._report(setup, length, of_schedules[length], played[length], static[length])
            for length in lengths
        }

    def _report(
        self, setup: EvaluationSetup, length: int, tables: Grid, played: Played, static: dict[str, Fixed]
    ) -> HeadroomReport:
        params, env, count = self.params, setup.env, len(setup.tasks)
        searched, host_params = self.searched[length], env.host.params
        added = searched.params - host_params
        reached = score(searched.val_accuracy_pct, added, host_params, params.train.price).round(4)
        names = [item.name for item in env.blueprints]
        return HeadroomReport(
            data_sha256=setup.data_sha256,
            rng_seed=params.rng_seed,
            epochs=length,
            host=HostDescription.model_validate(env.host),
            max_seeds=params.train.lifecycle.max_seeds,
            param_budget=params.train.lifecycle.param_budget,
            price=params.train.price,
            tasks=tuple(TaskRow.model_validate(task) for task in setup.held_out.tasks),
            rows=tuple(setup.tasks.tolist()),
            schedules=tuple(schedule.name(names) for schedule in self.schedules),
            common=int(reached.mean(axis=0).argmax()),
            common_cost=searched.params.size,
            search_scores=_rows(reached),
            choosing_val_pct=_rows(tables.val_accuracy_pct[count:]),
            val_pct=_rows(tables.val_accuracy_pct[:count]),
            test_pct=_rows(tables.test_accuracy_pct[:count]),
            params=_rows(tables.params[:count]),
            flops_per_sample=_rows(tables.flops_per_sample[:count]),
            grid_cost=tables.params.size,
            policies={name: score for name, (score, _) in played.items()},
            actions={name: actions for name, (_, actions) in played.items()},
            tuned=self.tuned,
            floors=static,
            standings={},
        )


def tuned_rules(params: Params) -> TunedRules | None:
    """Look up the rules that come with simic for these hosts and tasks; None: there are none, or nobody plays them."""
    return known(params) if TUNED in params.headroom.policies else None


def hand_rules(asked: Sequence[RuleName], env: GrowthEnv, tuned: TunedRules | None) -> dict[str, Actor]:
    """Return the policies of these names; without tuned rules the patient one stands in for them."""
    names = dict.fromkeys(PATIENT if name == TUNED and tuned is None else name for name in asked)
    return {name: tuned_actor(env, tuned) if name == TUNED and tuned else BASELINES[name](env) for name in names}


def possible_schedules(params: Params, env: GrowthEnv) -> list[Schedule]:
    """Return the schedules of what can grow; static is the first."""
    limit = params.train.lifecycle.max_seeds or env.host.slots
    blueprints = [of_slot.nonzero().flatten().tolist() for of_slot in env.openings]
    return every_schedule(blueprints, limit, params.headroom.steps, params.headroom.schedules)


def _rows(table: Table) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(value, 4) for value in row) for row in table.tolist())
