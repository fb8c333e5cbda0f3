"""Masks against a scalar oracle written from the rules, not from the code."""

from dataclasses import replace

import pytest
import torch
from growth.life.scalar_lifecycle import LIVE, ScalarHost

from simic.audit.reference.world import streams
from simic.envs.masks import NOT_TRAINING, Budget, action_masks, offered
from simic.growth.life.vocabulary import Op, Ramp, Slots, Stage
from simic.params import Lifecycle

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
    host = ScalarHost(SLOTS, params)
    for k, seat in enumerate(host.seats):
        seat.stage, seat.age = Stage(int(slots.stage[env, k])).name, int(slots.age[env, k])
        seat.ramp, seat.blueprint = Ramp(int(slots.ramp[env, k])).name, int(slots.blueprint[env, k])
    # The seed that makes room for the next one is gone by then.
    others = [(k, seat) for k, seat in enumerate(host.seats) if seat.stage in LIVE and k != slot]
    held = sum(int(RESERVE[k, seat.blueprint]) for k, seat in others)
    affordable = op != Op.GERMINATE or held + int(RESERVE[slot, blueprint]) <= limit
    return affordable and host.legal(op.name, slot)


@pytest.mark.parametrize("rest", [0, 5])
@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("max_seeds", [None, 1, 2])
@pytest.mark.parametrize(("limit", "auto_advance"), [(150.0, False), (50.0, True), (5.0, False), (1e9, True)])
def test_masks_equal_the_scalar_oracle(rest, sequential, max_seeds, limit, auto_advance):
    rules = {"sequential_development": sequential, "max_seeds": max_seeds, "auto_advance": auto_advance}
    params = Lifecycle(embargo_steps=rest, reset_steps=rest, min_prune_age=4, **rules)
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


def test_hosts_lack_some_blueprints_in_training_alone_each_its_own_and_none_all():
    hosts = torch.arange(4000)
    found = offered(0.8, 3, 5, hosts, 11)
    assert found.dtype == torch.bool and found.any(dim=1).all()
    assert found.float().mean().item() == pytest.approx(1 - 0.4, abs=0.01)  # the mean of 0 to 0.8 is lacking
    shares = found.float().mean(dim=1)
    assert (shares == 1).any() and (shares < 0.3).any(), "hosts differ in how many they have"
    assert not torch.equal(found, offered(0.8, 3, 6, hosts, 11)), "and from episode to episode"
    assert torch.equal(found[[7, 90]], offered(0.8, 3, 5, torch.tensor([7, 90]), 11)), "whoever is beside them"
    assert offered(0.0, 3, 5, hosts, 11) is None and offered(0.8, 3, 1 << 40, hosts, 11) is None
    for host in range(200):
        lacking = set((~found[host]).nonzero().flatten().tolist())
        assert lacking == streams.lacking(0.8, 3, 5, host, 11)
    assert streams.lacking(0.8, 3, 1 << 40, 7, 11) == set()
    few = offered(0.999, 3, 5, hosts, 2)
    assert few.any(dim=1).all() and [streams.lacking(0.999, 3, 5, h, 2) for h in range(200)] == [
        set((~row).nonzero().flatten().tolist()) for row in few[:200]
    ]


def test_a_host_cannot_germinate_what_it_lacks(make_env):
    env = make_env(envs=64, blueprint_dropout=0.9)
    had = offered(0.9, env.rng_seed, 2, env.env_ids, len(env.blueprints))
    observation, _ = env.reset(options={"iteration": 2})
    mask = observation.masks["blueprint"]
    assert torch.equal(mask, had[:, None] & env.openings) and not had.all()
    observation, _ = env.reset(options={"iteration": NOT_TRAINING})
    assert torch.equal(observation.masks["blueprint"], env.openings.expand_as(mask))
