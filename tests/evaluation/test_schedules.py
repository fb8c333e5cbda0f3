"""Open-loop schedules: how many there are, and that hosts side by side each get exactly their own."""

from math import comb

import pytest
import torch
from tiny import LIFECYCLE, STEPS, tiny_env

from simic.envs.play import play
from simic.evaluation.headroom import possible_schedules
from simic.evaluation.schedules import NONE, OpenLoop, Schedule, every_schedule
from simic.growth.life.vocabulary import Op, Stage
from tests.standard import Params

SLOTS, BLUEPRINTS = 3, (1, 4)
STATIC = Schedule((NONE,) * SLOTS)


def schedules(max_seeds, most=1000, steps=(0,)):
    return every_schedule([BLUEPRINTS] * SLOTS, max_seeds, steps, most)


@pytest.mark.parametrize("max_seeds", [1, 2, 3, 9])
@pytest.mark.parametrize("steps", [(0,), (0, 5)])
def test_every_choice_of_slots_and_blueprints_is_there_once_and_static_is_the_first(
    max_seeds, steps
):
    grid = schedules(max_seeds, steps=steps)
    # Which slots have a seed, and which blueprint each of them.
    seeds = range(1, min(max_seeds, SLOTS) + 1)
    assert len(grid) == 1 + len(steps) * sum(comb(SLOTS, k) * len(BLUEPRINTS) ** k for k in seeds)
    assert len(set(grid)) == len(grid) and grid[0] == STATIC
    assert {kind for schedule in grid for kind in schedule.blueprints} == {NONE, *BLUEPRINTS}


def test_a_cut_keeps_single_seeds_and_one_blueprint_everywhere_and_fills_up_by_hash():
    every, few = schedules(3), schedules(3, most=9)
    kinds = [[kind for kind in seeds.blueprints if kind != NONE] for seeds in few]
    assert sorted(map(len, kinds)) == [0, 1, 1, 1, 1, 1, 1, 3, 3] and all(
        len(set(seeds)) <= 1 for seeds in kinds
    )
    cut = schedules(3, most=15)
    assert cut == schedules(3, most=15) and len(cut) == 15
    assert set(few) < set(cut) < set(every)
    assert set(schedules(3, most=5)) < set(few) and schedules(3, most=len(every)) == every


def test_schedules_are_of_what_the_budget_can_pay_and_the_params_leave_open(bank):
    closed = {"blueprint": ["norm", "conv_heavy"], "slot": [0, 2]}
    lifecycle = LIFECYCLE.model_copy(update={"param_budget": 1.0})
    env = tiny_env(bank, hosts=1, actions=closed, lifecycle=lifecycle)
    names = [item.name for item in env.blueprints]
    possible = {item.name(names) for item in possible_schedules(Params(train=env.train), env)}
    affordable = env.budget.reserve[:, names.index("conv_heavy")] <= env.budget.limit
    assert affordable.tolist() == [True, False, False]
    seeds = ("norm at 0", "norm at 2", "conv_heavy at 0")
    assert possible == {"static", *(f"{seed}, step 0" for seed in seeds)}


def test_each_host_side_by_side_gets_exactly_what_its_schedule_says(bank):
    chosen = [
        STATIC,
        Schedule((NONE, 1, NONE)),
        Schedule((4, NONE, NONE), 6),
        Schedule((1, NONE, 4), 1),
    ]
    env = tiny_env(bank, hosts=len(chosen), lifecycle=LIFECYCLE.model_copy(update={"max_seeds": 2}))
    turns = []
    play(env, OpenLoop(chosen), 3, lambda *turn: turns.append(turn))
    fossilized = torch.where(env.slots.stage == Stage.FOSSILIZED, env.slots.blueprint, NONE)
    assert fossilized.tolist() == [list(schedule.blueprints) for schedule in chosen]
    for host, schedule in enumerate(chosen):
        germinated = [
            (situation.step, int(action.slot[host]), int(action.blueprint[host]))
            for situation, action, _, info in turns
            if info.effective_op[host] == Op.GERMINATE
        ]
        seeds = [(slot, kind) for slot, kind in enumerate(schedule.blueprints) if kind != NONE]
        assert [place for _, *place in germinated] == [list(seed) for seed in seeds]
        assert not seeds or germinated[0][0] == schedule.step
    assert len(turns) == STEPS and all(action.op[0] == Op.WAIT for _, action, *_ in turns)
