"""No way to earn without improving the network, for every mode, on constructed paths.

The same through the real environment is in test_gaming_played.py. Mode sparse, which never looks at the lifecycle, pays
such a path exactly nothing.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from simic.envs import rewards
from simic.growth.life.vocabulary import Op, Slots, Stage

from .transitions import VARIANT_NAMES, VARIANTS, measured, paid, transition, value

every_mode = pytest.mark.parametrize(("mode", "setting"), VARIANTS, ids=VARIANT_NAMES)
BLIND = ("sparse",)  # nothing is paid before the end, whatever the seeds do
# What a seed itself is credited with, apart from stages, the objective and what only costs.
CREDITS = ("attribution", "escrow", "fossilize")


def path(states: list[Slots], ops: list[Op], **last) -> list:
    """Transitions along states; the last one with the given flags."""
    steps = [transition(a, b, op) for (a, b), op in zip(pairwise(states), ops, strict=True)]
    return [*steps[:-1], transition(states[-2], states[-1], ops[-1], **last)] if last else steps


@every_mode
@pytest.mark.parametrize("waits", [0, 1, 3, 8])
def test_germinating_and_pruning_earns_nothing_and_less_with_every_cycle(make_slots, mode, setting, waits):
    empty, gone = make_slots([[Stage.DORMANT]]), make_slots([[Stage.PRUNED]])
    young = [make_slots([[Stage.GERMINATED]], dwell=[[n + 1]], age=[[n + 1]]) for n in range(waits + 1)]
    cycle = path([empty, *young, gone], [Op.GERMINATE] + [Op.WAIT] * waits + [Op.PRUNE])
    returns = [value(mode, cycle * n, setting) for n in range(1, 5)]
    if mode in BLIND:
        assert returns == [0.0] * 4
    else:
        assert returns[0] < 0 and all(more < fewer for fewer, more in pairwise(returns))


def life(make_slots, kept: bool) -> list:
    """A seed that gains 10 points, to the end of the episode, fossilized or pruned in the step before it."""
    good = {"contribution": 10.0, "gain": 10.0}
    states = [
        make_slots([[Stage.DORMANT]]),
        *(make_slots([[Stage.TRAINING]], dwell=[[n]], age=[[n]]) for n in (1, 2)),
        measured(make_slots, Stage.BLENDING, **good, dwell=1, alpha=[[0.5]]),
        *(measured(make_slots, Stage.HOLDING, **good, dwell=n, alpha=[[1.0]]) for n in (1, 2, 3)),
    ]
    final = measured(make_slots, Stage.FOSSILIZED, **good, dwell=1, alpha=[[1.0]])
    states += [final, final] if kept else [make_slots([[Stage.PRUNED]]), make_slots([[Stage.EMBARGOED]])]
    ops = [Op.GERMINATE, *[Op.WAIT] * 5, Op.FOSSILIZE if kept else Op.PRUNE, Op.WAIT]
    accuracy = torch.tensor([50.0 if kept else 40.0])
    loss = torch.tensor([1.2 if kept else 1.5])
    steps = path(states, ops)
    end = {"committed_accuracy": accuracy, "committed_loss": loss, "loss": loss}
    steps[6:] = [replace(step, **end) for step in steps[6:]]
    yes = torch.tensor([True])
    return [*steps[:-1], replace(steps[-1], ended=yes, terminal=yes)]


@every_mode
def test_a_full_life_is_worth_more_than_a_pruned_one(make_slots, mode, setting):
    assert value(mode, life(make_slots, kept=True), setting) > value(mode, life(make_slots, kept=False), setting)


@every_mode
@pytest.mark.parametrize("op", list(Op))
def test_ransomware_is_not_rewarded_under_any_op(make_slots, mode, setting, op):
    """Indispensable (c = 30), though the host got 10 points worse."""
    before = measured(make_slots, Stage.HOLDING, contribution=30.0, gain=-10.0, alpha=[[1.0]])
    after = measured(make_slots, Stage.FOSSILIZED if op == Op.FOSSILIZE else Stage.HOLDING, 30.0, -10.0, alpha=[[1.0]])
    worse = {"stable_accuracy": torch.tensor([30.0])}
    steps = [transition(before, before, **worse)] * 3 + [transition(before, after, op, **worse)]
    ending = transition(after, after, ended=True, terminal=True, **worse)
    for parts in paid(mode, [*steps, ending], setting):
        assert all(float(parts[name]) <= 0 for name in CREDITS if name in parts)
    assert value(mode, [*steps, ending], setting, objective=False) <= 0


@every_mode
def test_a_harmful_seed_farm_earns_nothing(make_slots, mode, setting):
    """Grow a seed until it hurts, then remove the damage: what it cost comes back at most, discounted."""
    empty, gone = make_slots([[Stage.DORMANT]]), make_slots([[Stage.PRUNED]])
    young = make_slots([[Stage.TRAINING]], dwell=[[3]], age=[[9]])
    bad = measured(make_slots, Stage.BLENDING, contribution=-20.0, gain=-15.0, alpha=[[0.5]], age=[[12]])
    states = [empty, young, bad, bad, gone, make_slots([[Stage.EMBARGOED]]), empty]
    cycle = path(states, [Op.GERMINATE, Op.ADVANCE, Op.WAIT, Op.PRUNE, Op.WAIT, Op.WAIT])
    for at in (1, 2):
        cycle[at] = replace(cycle[at], loss=torch.tensor([2.2]), stable_accuracy=torch.tensor([25.0]))
    returns = [value(mode, cycle * n, setting) for n in range(1, 4)]
    if mode in BLIND:
        assert returns == [0.0] * 3
    else:
        assert returns[0] < 0 and all(more < fewer for fewer, more in pairwise(returns))


@every_mode
def test_germinating_early_is_not_worth_more_than_late(make_slots, mode, setting):
    def returned(germination: int, horizon: int = 8) -> float:
        ages = [max(0, t - germination) for t in range(horizon + 1)]
        states = [make_slots([[Stage.GERMINATED if a else Stage.DORMANT]], dwell=[[a]], age=[[a]]) for a in ages]
        ops = [Op.GERMINATE if t == germination else Op.WAIT for t in range(horizon)]
        return value(mode, path(states, ops, ended=True, terminal=True), setting)

    returns = [returned(germination) for germination in range(8)]
    assert returns == sorted(returns)
    assert len(set(returns)) == (1 if mode in BLIND else 8)


@every_mode
def test_no_seed_earns_nothing_but_the_objective(make_slots, mode, setting):
    empty = make_slots([[Stage.DORMANT, Stage.PRUNED]])
    for flags in ({}, {"ended": True, "terminal": True}):
        parts = rewards.components(mode, transition(empty, empty, **flags), setting)
        assert all(float(v) == 0.0 for name, v in parts.items() if name not in rewards.OBJECTIVES)


@every_mode
def test_a_fossilized_seed_has_no_further_attribution(make_slots, mode, setting):
    before = measured(make_slots, Stage.FOSSILIZED, contribution=10.0, gain=20.0)
    after = measured(make_slots, Stage.FOSSILIZED, contribution=40.0, gain=60.0)
    for op in (Op.WAIT, Op.GERMINATE):
        parts = rewards.components(mode, transition(before, after, op), setting)
        assert all(float(parts[name]) == 0.0 for name in CREDITS if name in parts)


@every_mode
def test_the_objective_is_paid_at_the_end_and_once(make_slots, mode, setting):
    """Changes of loss and score are paid as they come."""
    slots = make_slots([[Stage.DORMANT]])
    steps = [transition(slots, slots) for _ in range(4)] + [transition(slots, slots, ended=True, terminal=True)]
    differences = ("loss_improvement", "score_change")
    objective = [name for name in rewards.MODES[mode] if name in rewards.OBJECTIVES and name not in differences]
    assert objective or mode == "score"
    amounts = [sum(float(parts[name]) for name in objective) for parts in paid(mode, steps, setting)]
    assert amounts[:4] == [0.0] * 4 and (amounts[4] > 0) == bool(objective)
    died = transition(slots, slots, terminal=True, panicked=True)
    assert all(float(rewards.components(mode, died, setting)[name]) == 0.0 for name in objective)


@every_mode
def test_accuracy_dominates_parameter_cost(make_slots, mode, setting):
    """Seeds that fill the budget from the first step to the last cost less than 40 points of accuracy are worth."""
    slots = make_slots([[Stage.FOSSILIZED]], alpha=[[1.0]], age=[[9]])
    large = {"seed_params_after": torch.tensor([[4000]]), "seed_params_before": torch.tensor([[4000]])}
    empty = {"seed_params_after": torch.tensor([[0]]), "seed_params_before": torch.tensor([[0]])}

    def returned(accuracy: float, loss: float, **size) -> float:
        now = {"committed_accuracy": torch.tensor([accuracy]), "committed_loss": torch.tensor([loss])}
        now["loss"] = now["committed_loss"]
        steps = [transition(slots, slots, **size, **now) for _ in range(9)]
        steps[0] = replace(steps[0], seed_params_before=empty["seed_params_before"])
        return value(mode, [*steps, transition(slots, slots, ended=True, terminal=True, **size, **now)], setting)

    assert returned(80.0, 0.6, **large) > returned(40.0, 1.5, **empty)
    assert returned(80.0, 0.6, **large) <= returned(80.0, 0.6, **empty)


@every_mode
def test_a_zero_threshold_divides_nothing_by_zero(make_slots, mode, setting):
    weights = setting.weights.model_copy(update={"contribution_threshold_pct": 0.0})
    free = replace(setting, weights=weights)
    for contribution, gain in ((0.0, 0.0), (5.0, 0.0), (5.0, -5.0), (-5.0, 5.0), (1e-30, 1e-30)):
        slots = measured(make_slots, Stage.HOLDING, contribution, gain, se=0.0)
        fossil = measured(make_slots, Stage.FOSSILIZED, contribution, gain, se=0.0)
        steps = [transition(slots, slots), transition(slots, fossil, Op.FOSSILIZE), transition(fossil, fossil)]
        for parts in paid(mode, steps, free):
            assert all(term.isfinite().all() for term in parts.values())
