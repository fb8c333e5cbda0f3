"""Scripted actions, constructed transitions, and what a mode pays along a path of them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from simic.envs import rewards
from simic.envs.rewards import Ledgers, Setting, Transition
from simic.growth.life.vocabulary import Action, Op, Slots, Stage
from simic.params import Reward, ShapedReward

GAMMA = 0.97
HOST = 1000
CHANCE = math.log(10)
WEIGHTS = Reward()
CHANCES = torch.tensor([CHANCE], dtype=torch.float64)
SETTING = Setting(WEIGHTS, GAMMA, 10, HOST, param_budget=4.0, price=0.0, chance_loss=CHANCES)
# Every optional term at the strength it had in the earlier system.
FULL = replace(
    SETTING,
    weights=Reward(
        shaped=ShapedReward(
            synergy_weight=0.1,
            hindsight_weight=0.2,
            ratio_penalty_weight=1.0,
            blending_warning_weight=1.0,
            indecision_weight=1.0,
            occupancy_weight=1.0,
        )
    ),
)
# (mode, setting): all shipped modes, those with options with all of them, and the score with a price.
PRICED = replace(SETTING, price=5.0)
VARIANTS = [(mode, SETTING) for mode in rewards.MODES] + [("shaped", FULL), ("escrow", FULL), ("score", PRICED)]
VARIANT_NAMES = [*rewards.MODES, "shaped_full", "escrow_full", "score_priced"]


def act(envs: int, op: Op, **heads: int) -> Action:
    """The same action in every host: the shortest ramp to alpha 1 that takes time, in slot 0, unless said otherwise."""
    named = {"op": int(op), "tempo": 1, "alpha_target": 2, **heads}
    return Action.wait(envs)._replace(**{name: torch.full((envs,), value) for name, value in named.items()})


def transition(before: Slots, after: Slots, op: Op = Op.WAIT, slot: int = 0, **changes) -> Transition:
    """A step of hosts whose seeds have 100 parameters each, at 50 points and a loss of 1.5."""
    envs, count = before.stage.shape
    no = torch.zeros(envs, dtype=torch.bool)
    plain = Transition(
        before,
        after,
        op=torch.full((envs,), int(op)),
        slot=torch.full((envs,), slot),
        step=1,
        seed_params_before=100 * (before.blueprint >= 0).long(),
        seed_params_after=100 * (after.blueprint >= 0).long(),
        interaction_before=torch.zeros(envs, count),
        interaction_after=torch.zeros(envs, count),
        stable_accuracy=torch.full((envs,), 50.0),
        committed_accuracy=torch.full((envs,), 50.0),
        loss=torch.full((envs,), 1.5),
        committed_loss=torch.full((envs,), 1.5),
        ended=no,
        terminal=no,
        panicked=no,
        ledgers=replace(start(envs, count), score=torch.full((envs,), 50.0, dtype=torch.float64)),
    )
    return replace(plain, **{k: torch.full_like(no, v) if isinstance(v, bool) else v for k, v in changes.items()})


def start(envs: int, slots: int, loss: float = 1.5, accuracy: float = 10.0) -> Ledgers:
    return Ledgers.start(slots, torch.full((envs,), loss), torch.full((envs,), accuracy), CHANCES)


def measured(make_slots, stage: Stage, contribution: float, gain: float, se: float = 0.1, dwell: int = 3, **more):
    """One slot of one host: a seed of this contribution whose host gained so much since it germinated."""
    return make_slots(
        [[stage]],
        dwell=[[dwell]],
        contribution=[[contribution]],
        contribution_se=[[se]],
        accuracy=[[40.0 + gain]],
        germination_accuracy=[[40.0]],
        **more,
    )


def random_states(count: int, envs: int, slots: int) -> list[Slots]:
    """Arbitrary states, legal or not: telescoping may not depend on the lifecycle."""
    generator = torch.Generator().manual_seed(5)
    states = []
    for _ in range(count):
        stage = torch.randint(0, len(Stage), (envs, slots), generator=generator)
        points = 100 * torch.rand(4, envs, slots, generator=generator) - 30
        points[0, torch.rand(envs, slots, generator=generator) < 0.3] = torch.nan
        states.append(
            replace(
                Slots.empty(envs, slots),
                stage=stage,
                dwell=torch.randint(0, 12, (envs, slots), generator=generator),
                age=torch.randint(0, 12, (envs, slots), generator=generator),
                contribution=points[0],
                contribution_se=points[1].abs() / 20,
                accuracy=points[2],
                germination_accuracy=points[3],
            )
        )
    return states


def discounted(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return sum((GAMMA**t * value for t, value in enumerate(values)), torch.zeros((), dtype=torch.float64))


def paid(mode: str, steps: Sequence[Transition], setting: Setting = SETTING) -> list[dict[str, torch.Tensor]]:
    """Components of each step of a path, the ledgers carried along."""
    ledgers, found = steps[0].ledgers, []
    for t, step in enumerate(steps):
        step = replace(step, ledgers=ledgers, step=t + 1)
        found.append(rewards.components(mode, step, setting))
        ledgers = rewards.advance(step, setting)
    return found


def value(mode: str, steps: Sequence[Transition], setting: Setting = SETTING, objective: bool = True) -> float:
    """Discounted return of host 0 along a path, with or without the terms that are what the mode is about."""
    parts = [
        {name: term for name, term in step.items() if objective or name not in rewards.OBJECTIVES}
        for step in paid(mode, steps, setting)
    ]
    return float(discounted([sum(step.values(), torch.zeros(1, dtype=torch.float64)) for step in parts])[0])
