"""Scripted actions, constructed transitions, and what a mode pays along a path of them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from simic import rng
from simic.agent.spec import Observation
from simic.envs import rewards
from simic.envs.actions import random_legal
from simic.envs.growth_env import GrowthEnv
from simic.envs.rewards import Setting, Transition
from simic.growth.life.vocabulary import Action, Op, Slots, Stage
from tests.standard import Reward

GAMMA = 0.97
HOST = 1000
CHANCE = math.log(10)
WEIGHTS = Reward()
CHANCES = torch.tensor([CHANCE], dtype=torch.float64)
SETTING = Setting(WEIGHTS, GAMMA, 10, HOST, param_budget=4.0, price=0.0, chance_loss=CHANCES)
# (mode, setting): all shipped modes, and the score with a price.
VARIANTS = [(mode, SETTING) for mode in rewards.MODES] + [("score", replace(SETTING, price=5.0))]
# Terms that are what a mode is about, not help on the way.
OBJECTIVES = {"score_change", "sparse", "loss_improvement", "loss_terminal", "terminal"}
VARIANT_NAMES = [*rewards.MODES, "score_priced"]


def act(envs: int, op: Op, **heads: int) -> Action:
    """The same action in every host: the shortest ramp to alpha 1 that takes time, in slot 0, unless said otherwise."""
    choices = {"op": int(op), "tempo": 1, "alpha_target": 2, **heads}
    return Action.wait(envs)._replace(
        **{name: torch.full((envs,), value) for name, value in choices.items()}
    )


def random_step(env: GrowthEnv, seen: Observation) -> tuple[Observation, dict[str, torch.Tensor]]:
    """One step of random legal actions: the observation after it, and all that there is to see of it."""
    stream = rng.key(1, rng.Purpose.BASELINE, env.iteration, env.env_ids, env._step)
    noise = rng.uniform(stream, (len(env.action_spec.heads),))
    seen, reward, *_, info = env.step(random_legal(env.action_spec, seen, noise))
    columns = {name: value for name, value in vars(info).items() if name != "components"}
    return seen, columns | info.components | {"reward": reward, "features": seen.features}


def transition(
    before: Slots, after: Slots, op: Op = Op.WAIT, slot: int = 0, **changes
) -> Transition:
    """A step of hosts whose seeds have 100 parameters each, at 50 points and a loss of 1.5; nothing is remembered."""
    envs = len(before.stage)
    no = torch.zeros(envs, dtype=torch.bool)
    plain = Transition(
        before,
        after,
        op=torch.full((envs,), int(op)),
        slot=torch.full((envs,), slot),
        seed_params_before=100 * (before.blueprint >= 0).long(),
        seed_params_after=100 * (after.blueprint >= 0).long(),
        stable_accuracy=torch.full((envs,), 50.0),
        committed_accuracy_before=torch.full((envs,), 50.0),
        committed_accuracy=torch.full((envs,), 50.0),
        loss=torch.full((envs,), 1.5),
        committed_loss=torch.full((envs,), 1.5),
        ended=no,
        terminal=no,
        panicked=no,
        ledgers=start(before),
    )
    return replace(
        plain,
        **{k: torch.full_like(no, v) if isinstance(v, bool) else v for k, v in changes.items()},
    )


def start(slots: Slots) -> dict[str, torch.Tensor]:
    """What any mode remembers after a reset at a loss of 1.5."""
    loss = torch.full((len(slots.stage),), 1.5)
    return {
        name: value
        for mode in rewards.MODES
        for name, value in rewards.start(mode, slots, loss, SETTING).items()
    }


def measured(
    make_slots,
    stage: Stage,
    contribution: float,
    gain: float,
    se: float = 0.1,
    dwell: int = 3,
    **more,
):
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
    return sum(
        (GAMMA**t * value for t, value in enumerate(values)), torch.zeros((), dtype=torch.float64)
    )


def paid(
    mode: str, steps: Sequence[Transition], setting: Setting = SETTING
) -> list[dict[str, torch.Tensor]]:
    """Components of each step of a path, with what the mode remembers and the accuracies before each carried along."""
    ledgers = steps[0].ledgers
    accuracy = steps[0].committed_accuracy_before
    components = []
    for step in steps:
        step = replace(step, ledgers=ledgers, committed_accuracy_before=accuracy)
        components.append(rewards.components(mode, step, setting))
        ledgers = rewards.advance(mode, step, setting)
        accuracy = step.committed_accuracy
    return components


def value(
    mode: str, steps: Sequence[Transition], setting: Setting = SETTING, objective: bool = True
) -> float:
    """Discounted return of host 0 along a path, with or without the terms that are what the mode is about."""
    parts = [
        {name: term for name, term in step.items() if objective or name not in OBJECTIVES}
        for step in paid(mode, steps, setting)
    ]
    return float(
        discounted([sum(step.values(), torch.zeros(1, dtype=torch.float64)) for step in parts])[0]
    )
