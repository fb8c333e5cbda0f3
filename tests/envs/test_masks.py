"""Masks against the reference's life of one slot at a time."""

from dataclasses import replace

import pytest
import torch

from simic.certify import life
from simic.envs.actions import Budget, action_masks
from simic.growth.life.vocabulary import Op, Ramp, Slots, Stage
from simic.params import Lifecycle
from tests import standard

SLOTS, BLUEPRINTS = 3, 4
RESERVE = torch.tensor([[10, 20, 30, 200], [40, 50, 60, 300], [70, 80, 90, 400]])


def random_slots(envs: int, seed: int) -> Slots:
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int) -> torch.Tensor:
        return torch.randint(0, high, (envs, SLOTS), generator=generator)

    # Half of the slots empty, so that germination is often possible.
    stage = torch.where(draw(2) == 0, 0, draw(len(Stage)))
    live = (stage >= Stage.GERMINATED) & (stage <= Stage.FOSSILIZED)
    return replace(
        Slots.empty(envs, SLOTS),
        stage=stage,
        blueprint=torch.where(live, draw(BLUEPRINTS), -1),
        age=torch.where(live, draw(8), 0),
        ramp=torch.where(stage == Stage.BLENDING, draw(len(Ramp)), int(Ramp.HOLD)),
    )


def legal(slots: Slots, params: Lifecycle, limit: float, env: int, op: Op, slot: int, blueprint: int) -> bool:
    """May this op be done to this slot (sequential-development and budget rules included)?"""
    columns = (getattr(slots, name)[env].tolist() for name in ("stage", "age", "ramp", "blueprint"))
    host = [
        life.Slot(stage, seed=life.Seed(age=age, ramp=ramp, blueprint=kind))
        for stage, age, ramp, kind in zip(*columns, strict=True)
    ]
    # The seed that makes room for the next one is gone by then.
    held = sum(int(RESERVE[k, place.seed.blueprint]) for k, place in enumerate(host) if place.alive and k != slot)
    affordable = op != Op.GERMINATE or held + int(RESERVE[slot, blueprint]) <= limit
    return affordable and life.allowed(host, params)[op][slot]


@pytest.mark.parametrize("rest", [0, 5])
@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("max_seeds", [None, 1, 2])
@pytest.mark.parametrize(("limit", "auto_advance"), [(150.0, False), (50.0, True), (5.0, False), (1e9, True)])
def test_masks_equal_the_scalar_oracle(rest, sequential, max_seeds, limit, auto_advance):
    rules = {"sequential_development": sequential, "max_seeds": max_seeds, "auto_advance": auto_advance}
    params = standard.Lifecycle(embargo_steps=rest, reset_steps=rest, min_prune_age=4, **rules)
    envs = 60
    slots = random_slots(envs, seed=int(limit) % 97 + (max_seeds or 0))
    masks = action_masks(slots, params, Budget(RESERVE, limit, torch.ones(BLUEPRINTS, dtype=torch.bool)))
    for env in range(envs):
        for op in Op:
            for slot in range(SLOTS):
                allowed = [legal(slots, params, limit, env, op, slot, p) for p in range(BLUEPRINTS)]
                assert bool(masks["slot"][env, op, slot]) == any(allowed), (env, op, slot)
                if op == Op.GERMINATE:
                    assert masks["blueprint"][env, slot].tolist() == allowed
            assert bool(masks["op"][env, op]) == bool(masks["slot"][env, op].any())
