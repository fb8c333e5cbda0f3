"""No way to earn without improving the network, played through the real environment and through random lives.

The steps are recorded once, and every mode is asked what it pays for them.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from simic import rng
from simic.envs import rewards
from simic.growth.batch.population import Population
from simic.growth.life.lifecycle import LIVE_STAGES, Measurements, advance, in_stages, legal_ops, record
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
from tests.standard import Lifecycle

from .transitions import VARIANT_NAMES, VARIANTS, act, start, transition

MANUAL = Lifecycle(training_dwell=1, blending_dwell=1, min_prune_age=1, embargo_steps=1, auto_advance=False)
BLIND = ("sparse",)  # pays at the end only, for what is committed


def returns(mode: str, transitions: list, counts: Callable[[str], bool]) -> torch.Tensor:
    """Discounted sum ``[E]`` of what a mode pays for recorded transitions in the terms that count."""
    total = torch.zeros(transitions[0][0].op.shape, dtype=torch.float64)
    for t, (step, setting) in enumerate(transitions):
        for name, part in rewards.components(mode, step, setting).items():
            if counts(name):
                total += setting.gamma**t * part
    return total


class Spoiled(Population):
    """A population whose seeds are blown up after every epoch of blending: they harm as much as a seed can."""

    def train_epoch(self, slots, *arguments):
        stats = super().train_epoch(slots, *arguments)
        if (slots.stage == Stage.BLENDING).all(dim=0)[0]:
            state = self.state_dict()
            for name in state:
                if name.startswith("seed.") and name.endswith("/param"):
                    state[name] = 5.0 * torch.ones_like(state[name])
            self.load_state_dict(state)
        return stats


def test_growing_a_harmful_seed_to_be_paid_for_its_removal_earns_nothing(make_env, transitions):
    ops = [*[Op.WAIT] * 8, Op.GERMINATE, Op.ADVANCE, Op.WAIT, Op.ADVANCE, *[Op.WAIT] * 3, Op.PRUNE, Op.WAIT]
    blind_governor = Governor(min_history=1000)  # it would end the episode
    kind = {"family": "mlp", "lifecycle": MANUAL, "batches_per_epoch": 10, "compose": Spoiled}
    env = make_env(envs=3, steps=len(ops), governor=blind_governor, **kind)
    env.reset(options={"iteration": 0})
    for op in ops:
        *_, info = env.step(act(3, op, blueprint=3))
        assert (info.effective_op == op).all(), (op, info.gate)
    steps = list(transitions)  # which asking for rewards makes longer
    harm = torch.stack([step.after.contribution[:, 0] for step, _ in steps]).nan_to_num().amin(dim=0)
    assert (harm < -1).all(), "the seeds must harm for this test to mean anything"
    for mode in rewards.MODES:
        worth = returns(mode, steps, lambda name: name not in rewards.OBJECTIVES)
        assert (worth == 0).all() if mode in BLIND else (worth < 0).all(), mode
        assert returns(mode, steps, lambda name: name in ("attribution", "escrow")).abs().max() < 1e-9


def draw(envs: int, step: int, size: int, what: int) -> torch.Tensor:
    return rng.uniform(rng.key(3, rng.Purpose.BASELINE, what, torch.arange(envs), step), (size,))


def random_life(envs: int, count: int, steps: int) -> list:
    """Random legal ops under random measurements, through the real lifecycle; no network is trained."""
    slots, found = Slots.empty(envs, count), []
    sizes = (len(STYLES), len(TEMPO_STEPS), len(ALPHA_TARGETS), len(ALPHA_SPEED_STEPS), len(Curve))
    rows = torch.arange(envs)
    for t in range(steps):
        legal = legal_ops(slots, MANUAL)
        legal[:, Op.FOSSILIZE] = False  # what is kept is paid for, and rightly: here it is about loops
        noise = draw(envs, t, 9, 0)
        # WAIT is every host's last choice: a loop is a matter of acting.
        op = (legal.any(dim=2) * draw(envs, t, len(Op), 1) * torch.tensor([0.3, *[1.0] * 5])).argmax(dim=1)
        slot = (legal[rows, op] * (draw(envs, t, count, 2) + 0.01)).argmax(dim=1)
        heads = [(noise[:, h] * size).long() for h, size in enumerate(sizes)]
        action = Action(op, slot, torch.zeros_like(op), *heads)
        accuracy = 20 + 60 * draw(envs, t, 1, 3)[:, 0]
        after, events = advance(slots, action, MANUAL, accuracy)
        acting = in_stages(after.stage, LIVE_STAGES - {Stage.GERMINATED}) & (after.alpha > 0)
        after = record(
            after,
            Measurements(
                accuracy=20 + 60 * draw(envs, t, 1, 4)[:, 0],
                contribution=torch.where(acting, 80 * draw(envs, t, count, 5) - 40, torch.nan),
                contribution_se=draw(envs, t, count, 6),
                gradient_ratio=torch.ones(envs, count),
                gradient_healthy=torch.ones(envs, count, dtype=torch.bool),
            ),
        )
        step = transition(slots, after, stable_accuracy=20 + 60 * draw(envs, t, 1, 7)[:, 0])
        found.append(replace(step, op=events.effective_op, slot=slot))
        slots = after
    return found


@pytest.mark.parametrize(("mode", "setting"), VARIANTS, ids=VARIANT_NAMES)
def test_no_closed_loop_of_random_lives_earns(mode, setting):
    """From a host without live seeds to a host without live seeds again: at most nothing, discounted, in every mode."""
    envs, steps = 120, 50
    ledgers, sums = start(Slots.empty(envs, 2)), [torch.zeros(envs, dtype=torch.float64)]
    empty = []
    for t, step in enumerate(random_life(envs, 2, steps)):
        step = replace(step, ledgers=ledgers)
        parts = rewards.components(mode, step, setting)
        paid = sum((v for name, v in parts.items() if name not in rewards.OBJECTIVES), torch.zeros(envs))
        sums.append(sums[-1] + setting.gamma**t * paid)
        ledgers = rewards.advance(mode, step, setting)
        empty.append(~in_stages(step.before.stage, LIVE_STAGES).any(dim=1))
    loops = 0
    for first in range(steps):
        for second in range(first + 2, steps):
            both = empty[first] & empty[second] & ~empty[first + 1]
            loops += int(both.sum())
            earned = (sums[second] - sums[first]) / setting.gamma**first
            assert (earned[both] <= 1e-9).all(), (mode, first, second)
    assert loops > 200
