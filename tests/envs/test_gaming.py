"""No way to earn without improving the network, in any mode.

First on constructed paths, then through the real environment and through random lives: steps are recorded once, and
every mode is asked what it pays for them. Mode sparse, which never looks at the lifecycle, pays exactly nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from simic import rng
from simic.envs import rewards
from simic.growth.life.lifecycle import LIVE_STAGES, advance, in_stages, legal_ops, record
from simic.growth.life.vocabulary import (
    ALPHA_SPEED_STEPS,
    ALPHA_TARGETS,
    STYLES,
    TEMPO_STEPS,
    Action,
    Curve,
    Op,
    Slots,
    Stage,
)
from simic.params import Governor
from tests.standard import Lifecycle, Reward

from .test_faults import spoiled
from .transitions import (
    OBJECTIVES,
    SETTING,
    VARIANT_NAMES,
    VARIANTS,
    act,
    measured,
    paid,
    random_states,
    transition,
    value,
)

every_mode = pytest.mark.parametrize(("mode", "setting"), VARIANTS, ids=VARIANT_NAMES)
BLIND = ("sparse",)  # nothing is paid before the end, whatever the seeds do
# What a seed itself is credited with, apart from stages, the objective and what only costs.
CREDITS = ("attribution", "escrow", "fossilize")


def path(states: list[Slots], ops: list[Op], **last) -> list:
    """Transitions along states; the last one with the given flags."""
    steps = [transition(a, b, op) for (a, b), op in zip(pairwise(states), ops, strict=True)]
    return [*steps[:-1], transition(states[-2], states[-1], ops[-1], **last)] if last else steps


def costs_more_and_more(mode: str, cycle: list, setting) -> None:
    """A cycle costs something, and less is earned with every further one."""
    returns = [value(mode, cycle * n, setting) for n in range(1, 5)]
    if mode in BLIND:
        assert returns == [0.0] * 4
    else:
        assert returns[0] < 0 and all(more < fewer for fewer, more in pairwise(returns))


@every_mode
@pytest.mark.parametrize("waits", [0, 1, 8])
def test_germinating_and_pruning_earns_nothing_and_less_with_every_cycle(
    make_slots, mode, setting, waits
):
    empty = make_slots([[Stage.DORMANT]])
    gone = make_slots([[Stage.PRUNED]])
    young = [
        make_slots([[Stage.GERMINATED]], dwell=[[n + 1]], age=[[n + 1]]) for n in range(waits + 1)
    ]
    cycle = path([empty, *young, gone], [Op.GERMINATE] + [Op.WAIT] * waits + [Op.PRUNE])
    costs_more_and_more(mode, cycle, setting)


@every_mode
@pytest.mark.parametrize("op", list(Op))
def test_ransomware_is_not_rewarded_under_any_op(make_slots, mode, setting, op):
    """Indispensable (c = 30), though the host got 10 points worse."""
    before = measured(make_slots, Stage.HOLDING, contribution=30.0, gain=-10.0, alpha=[[1.0]])
    after = measured(
        make_slots,
        Stage.FOSSILIZED if op == Op.FOSSILIZE else Stage.HOLDING,
        30.0,
        -10.0,
        alpha=[[1.0]],
    )
    worse = {"stable_accuracy": torch.tensor([30.0])}
    steps = [transition(before, before, **worse)] * 3 + [transition(before, after, op, **worse)]
    ending = transition(after, after, ended=True, terminal=True, **worse)
    for parts in paid(mode, [*steps, ending], setting):
        assert all(float(parts[name]) <= 0 for name in CREDITS if name in parts)
    assert value(mode, [*steps, ending], setting, objective=False) <= 0


@every_mode
def test_a_harmful_seed_farm_earns_nothing(make_slots, mode, setting):
    """Grow a seed until it hurts, then remove the damage: what it cost comes back at most, discounted."""
    empty = make_slots([[Stage.DORMANT]])
    gone = make_slots([[Stage.PRUNED]])
    young = make_slots([[Stage.TRAINING]], dwell=[[3]], age=[[9]])
    bad = measured(
        make_slots, Stage.BLENDING, contribution=-20.0, gain=-15.0, alpha=[[0.5]], age=[[12]]
    )
    states = [empty, young, bad, bad, gone, make_slots([[Stage.EMBARGOED]]), empty]
    cycle = path(states, [Op.GERMINATE, Op.ADVANCE, Op.WAIT, Op.PRUNE, Op.WAIT, Op.WAIT])
    for at in (1, 2):
        cycle[at] = replace(
            cycle[at], loss=torch.tensor([2.2]), stable_accuracy=torch.tensor([25.0])
        )
    costs_more_and_more(mode, cycle, setting)


@every_mode
def test_a_fossilized_seed_has_no_further_attribution(make_slots, mode, setting):
    before = measured(make_slots, Stage.FOSSILIZED, contribution=10.0, gain=20.0)
    after = measured(make_slots, Stage.FOSSILIZED, contribution=40.0, gain=60.0)
    for op in (Op.WAIT, Op.GERMINATE):
        parts = rewards.components(mode, transition(before, after, op), setting)
        assert all(float(parts[name]) == 0.0 for name in CREDITS if name in parts)


@every_mode
def test_a_zero_threshold_divides_nothing_by_zero(make_slots, mode, setting):
    weights = setting.weights.model_copy(update={"contribution_threshold_pct": 0.0})
    free = replace(setting, weights=weights)
    for contribution, gain in ((0.0, 0.0), (5.0, 0.0), (5.0, -5.0), (-5.0, 5.0), (1e-30, 1e-30)):
        slots = measured(make_slots, Stage.HOLDING, contribution, gain, se=0.0)
        fossil = measured(make_slots, Stage.FOSSILIZED, contribution, gain, se=0.0)
        steps = [
            transition(slots, slots),
            transition(slots, fossil, Op.FOSSILIZE),
            transition(fossil, fossil),
        ]
        for parts in paid(mode, steps, free):
            assert all(term.isfinite().all() for term in parts.values())


# --- no way to earn without improving the network, played through the real environment and through random lives ---


BLENDED_FROM = 11  # the epoch of the first ADVANCE but one
MANUAL = Lifecycle(
    training_dwell=1, blending_dwell=1, min_prune_age=1, embargo_steps=1, auto_advance=False
)


def returns(mode: str, transitions: list, counts: Callable[[str], bool]) -> torch.Tensor:
    """Discounted sum ``[E]`` of what a mode pays for recorded transitions in the terms that count."""
    total = torch.zeros(transitions[0][0].op.shape, dtype=torch.float64)
    for t, (step, setting) in enumerate(transitions):
        for name, part in rewards.components(mode, step, setting).items():
            if counts(name):
                total += setting.gamma**t * part
    return total


def blow_up(state: dict[str, torch.Tensor], epoch: int) -> None:
    """Make seeds harm as much as a seed can, once they are blended in."""
    for name, weights in state.items():
        if epoch >= BLENDED_FROM and name.startswith("seed.") and name.endswith("/param"):
            weights.fill_(5.0)


def test_growing_a_harmful_seed_to_be_paid_for_its_removal_earns_nothing(make_env, transitions):
    ops = [
        *[Op.WAIT] * 8,
        Op.GERMINATE,
        Op.ADVANCE,
        Op.WAIT,
        Op.ADVANCE,
        *[Op.WAIT] * 3,
        Op.PRUNE,
        Op.WAIT,
    ]
    blind_governor = Governor(min_history=1000)  # it would end the episode
    kind = {
        "family": "mlp",
        "lifecycle": MANUAL,
        "batches_per_epoch": 10,
        "compose": spoiled(blow_up),
    }
    env = make_env(envs=3, steps=len(ops), governor=blind_governor, **kind)
    env.reset(options={"iteration": 0})
    for op in ops:
        *_, info = env.step(act(3, op, blueprint=3))
        assert (info.effective_op == op).all(), (op, info.gate)
    steps = list(transitions)  # which asking for rewards makes longer
    harm = (
        torch.stack([step.after.contribution[:, 0] for step, _ in steps]).nan_to_num().amin(dim=0)
    )
    assert (harm < -1).all(), "the seeds must harm for this test to mean anything"
    for mode in rewards.MODES:
        worth = returns(mode, steps, lambda name: name not in OBJECTIVES)
        assert (worth == 0).all() if mode in BLIND else (worth < 0).all(), mode
        assert (
            returns(mode, steps, lambda name: name in ("attribution", "escrow")).abs().max() < 1e-9
        )


def draw(envs: int, step: int, size: int, number: int) -> torch.Tensor:
    return rng.uniform(rng.key(3, rng.Purpose.BASELINE, number, torch.arange(envs), step), (size,))


@pytest.fixture(scope="module")
def lives() -> list:
    """Random legal ops under random measurements, through the real lifecycle; no network is trained."""
    envs = 120
    count = 2
    steps = 50
    slots = Slots.empty(envs, count)
    transitions_of_lives = []
    sizes = (len(STYLES), len(TEMPO_STEPS), len(ALPHA_TARGETS), len(ALPHA_SPEED_STEPS), len(Curve))
    rows = torch.arange(envs)
    for t in range(steps):
        legal = legal_ops(slots, MANUAL)
        # What is kept is paid for, and rightly: here it is about loops
        legal[:, Op.FOSSILIZE] = False
        noise = draw(envs, t, 9, 0)
        # WAIT is every host's last choice: a loop is a matter of acting.
        op = (
            legal.any(dim=2) * draw(envs, t, len(Op), 1) * torch.tensor([0.3, *[1.0] * 5])
        ).argmax(dim=1)
        slot = (legal[rows, op] * (draw(envs, t, count, 2) + 0.01)).argmax(dim=1)
        heads = [(noise[:, h] * size).long() for h, size in enumerate(sizes)]
        action = Action(op, slot, torch.zeros_like(op), *heads)
        accuracy = 20 + 60 * draw(envs, t, 1, 3)[:, 0]
        after, events = advance(slots, action, MANUAL, accuracy)
        acting = in_stages(after.stage, LIVE_STAGES - {Stage.GERMINATED}) & (after.alpha > 0)
        after = record(
            after,
            accuracy=20 + 60 * draw(envs, t, 1, 4)[:, 0],
            contribution=torch.where(acting, 80 * draw(envs, t, count, 5) - 40, torch.nan),
            contribution_se=draw(envs, t, count, 6),
            gradient_ratio=torch.ones(envs, count),
            gradient_healthy=torch.ones(envs, count, dtype=torch.bool),
        )
        step = transition(slots, after, stable_accuracy=20 + 60 * draw(envs, t, 1, 7)[:, 0])
        transitions_of_lives.append(replace(step, op=events.effective_op, slot=slot))
        slots = after
    return transitions_of_lives


@every_mode
def test_no_closed_loop_of_random_lives_earns(lives, mode, setting):
    """From a host without live seeds to a host without live seeds again: at most nothing, discounted, in every mode."""
    envs = len(lives[0].op)
    steps = len(lives)
    ledgers = lives[0].ledgers
    sums = [torch.zeros(envs, dtype=torch.float64)]
    empty = []
    for t, step in enumerate(lives):
        step = replace(step, ledgers=ledgers)
        parts = rewards.components(mode, step, setting)
        paid = sum((v for name, v in parts.items() if name not in OBJECTIVES), torch.zeros(envs))
        sums.append(sums[-1] + setting.gamma**t * paid)
        ledgers = rewards.advance(mode, step, setting)
        empty.append(~in_stages(step.before.stage, LIVE_STAGES).any(dim=1))
    loops = 0
    for first in range(steps):
        for second in range(first + 2, steps):
            is_loop = empty[first] & empty[second] & ~empty[first + 1]
            loops += int(is_loop.sum())
            earned = (sums[second] - sums[first]) / setting.gamma**first
            assert (earned[is_loop] <= 1e-9).all(), (mode, first, second)
    assert loops > 200


# --- what one step can pay: bounded in every mode; what only costs never pays; prices come from the params ---


COSTS = ("rent", "loss_rent", "alpha_shock", "intervention", "death", "toxic")


@every_mode
def test_pruning_costs_and_pays_a_bounded_amount_whatever_the_seed_did(make_slots, mode, setting):
    """At most the credit of 100 points, the largest potential and the largest shock: 10 + 0.3 · 7.5 + 1 and change."""
    gone = make_slots([[Stage.PRUNED]])
    for contribution in (-100.0, -5.0, 0.0, 5.0, 100.0):
        for dwell in (0, 3, 1000):
            seed = measured(
                make_slots, Stage.HOLDING, contribution, 60.0, dwell=dwell, alpha=[[1.0]]
            )
            parts = rewards.components(mode, transition(seed, gone, Op.PRUNE), setting)
            assert abs(float(rewards.total(parts))) < 14, (contribution, dwell, parts)


@every_mode
def test_waiting_longer_never_costs_more_and_more(make_slots, mode, setting):
    """No price grows without end with the time a seed has been somewhere."""
    for stage in (
        Stage.GERMINATED,
        Stage.TRAINING,
        Stage.BLENDING,
        Stage.HOLDING,
        Stage.FOSSILIZED,
    ):
        paid = []
        for dwell in (30, 3000):
            seed = measured(
                make_slots, stage, 20.0, 30.0, dwell=dwell, age=[[dwell]], alpha=[[1.0]]
            )
            paid.append(
                float(rewards.total(rewards.components(mode, transition(seed, seed), setting)))
            )
        assert paid[0] == pytest.approx(paid[1], abs=1e-12), stage


def test_what_only_costs_never_pays_under_any_op():
    states = random_states(6, 40, 3)
    for before, after in pairwise(states):
        for op in Op:
            step = transition(before, after, op, slot=1)
            for name in COSTS:
                assert (rewards.TERMS[name](step, SETTING) <= 0).all(), (name, op)


def test_the_price_of_an_op_is_the_one_of_the_params(make_slots):
    empty = make_slots([[Stage.DORMANT]])
    for price in (0.0, 0.01, 0.5):
        setting = replace(SETTING, weights=Reward(intervention_cost=price))
        for op in Op:
            paid = rewards.components("shaped", transition(empty, empty, op), setting)[
                "intervention"
            ]
            assert paid.tolist() == [0.0 if op is Op.WAIT else -price]
