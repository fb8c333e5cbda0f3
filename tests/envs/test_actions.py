"""Forms of an action and the sampling of legal ones."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from simic.agent.spec import Observation
from simic.certify import life
from simic.envs import actions
from simic.envs.actions import Budget, action_masks
from simic.growth.life.lifecycle import advance
from simic.growth.life.vocabulary import Action, Op, Ramp, Slots, Stage
from tests import standard
from tests.standard import Lifecycle

SPEC = actions.action_spec(slots=3, blueprints=7)


def observation(envs: int, masks: dict[str, torch.Tensor]) -> Observation:
    return Observation(torch.zeros(envs, 1), torch.zeros(envs, 0, dtype=torch.int64), masks)


def random_masks(envs: int, seed: int, density: float = 0.4) -> dict[str, torch.Tensor]:
    """Consistent masks: an op is legal where a slot is, GERMINATE where a blueprint is, WAIT always."""
    generator = torch.Generator().manual_seed(seed)
    slot = torch.rand(envs, len(Op), 3, generator=generator) < density
    slot[:, Op.WAIT] = True
    blueprint = (torch.rand(envs, 3, 7, generator=generator) < density) & slot[:, Op.GERMINATE, :, None]
    slot[:, Op.GERMINATE] = blueprint.any(dim=2)
    return {"op": slot.any(dim=2), "slot": slot, "blueprint": blueprint}


def is_legal(action: list[int], masks: dict[str, torch.Tensor], env: int) -> bool:
    """The slow obvious reading of the masks."""
    op, slot, blueprint = action[:3]
    if op == Op.WAIT:
        return True
    if not masks["slot"][env, op, slot]:
        return False
    return op != Op.GERMINATE or bool(masks["blueprint"][env, slot, blueprint])


def test_random_legal_is_uniform_over_ops_then_slots_then_heads():
    masks = random_masks(1, seed=3, density=0.6)
    draws = 20_000
    many = {name: mask.expand(draws, *mask.shape[1:]) for name, mask in masks.items()}
    noise = torch.rand(draws, 8, generator=torch.Generator().manual_seed(4))
    played = actions.random_legal(SPEC, observation(draws, many), noise).tolist()
    ops = int(masks["op"].sum())
    counts = Counter(action[0] for action in played)
    # Standard error of a share p over n draws is sqrt(p(1-p)/n) < 0.0036; five of them.
    assert all(abs(counts[op] / draws - 1 / ops) < 0.018 for op in torch.nonzero(masks["op"][0]).flatten().tolist())
    for op in counts:
        used = [action for action in played if action[0] == op]
        slots = torch.nonzero(masks["slot"][0, op]).flatten().tolist()
        if op != Op.WAIT:
            shares = Counter(action[1] for action in used)
            assert all(abs(shares[slot] / len(used) - 1 / len(slots)) < 0.05 for slot in slots)
    styles = Counter(action[3] for action in played if action[0] == Op.GERMINATE)
    assert len(styles) == 4 and max(styles.values()) < 1.3 * min(styles.values())


def test_grammar_mask_is_exact():
    masks = random_masks(40, seed=6)
    rows = actions.grammar(SPEC)
    legal = actions.grammar_mask(SPEC, observation(40, masks), rows)
    assert legal[:, 0].all()
    for env in range(40):
        assert legal[env].tolist() == [is_legal(action, masks, env) for action in rows.tolist()]


@pytest.mark.parametrize("op", list(Op))
def test_an_op_reads_exactly_the_heads_that_its_row_names(op):
    """Change one head of many actions: some slot's life takes another course if and only if the table says so."""
    stages = (Stage.DORMANT, Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
    rows, draw = 200 * len(stages), torch.Generator().manual_seed(1)
    stage = torch.tensor(stages).repeat(200)[:, None].expand(rows, 3)
    blending = stage == Stage.BLENDING
    slots = replace(
        Slots.empty(rows, 3),
        stage=stage,
        dwell=torch.full((rows, 3), 9),
        age=torch.full((rows, 3), 9),
        contribution=torch.ones(rows, 3),
        gradient_healthy=torch.ones(rows, 3, dtype=torch.bool),
        **{name: torch.where(blending, 0.6, 1.0) for name in ("alpha", "alpha_target")},
    )
    drawn = [torch.randint(head.size, (rows,), generator=draw) for head in SPEC.heads]
    action = Action(*drawn)._replace(op=torch.full((rows,), int(op)))
    rules = Lifecycle(gates="permissive", sequential_development=False, auto_advance=False)
    read = set()
    for name, head in zip(Action._fields[1:], SPEC.heads[1:], strict=True):
        other = action._replace(**{name: (getattr(action, name) + 1) % head.size})
        found = [vars(advance(slots, each, rules, torch.full((rows,), 50.0))[0]) for each in (action, other)]
        if not all(torch.equal(x.nan_to_num(-1.0), found[1][key].nan_to_num(-1.0)) for key, x in found[0].items()):
            read.add(name)
    assert read == set(actions.RELEVANT[op])


# --- masks against the reference's life of one slot at a time ---


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


def legal(slots: Slots, params: standard.Lifecycle, limit: float, env: int, op: Op, slot: int, blueprint: int) -> bool:
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
