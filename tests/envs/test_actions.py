"""Forms of an action and the sampling of legal ones."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from simic.agent.spec import Observation
from simic.envs import actions
from simic.envs.play import Episode
from simic.growth.life.lifecycle import advance
from simic.growth.life.vocabulary import Action, Op, Slots, Stage
from tests.standard import Lifecycle

SPEC = actions.action_spec(slots=3, blueprints=7)


def observation(envs: int, masks: dict[str, torch.Tensor]) -> Observation:
    return Observation(torch.zeros(envs, 1), torch.zeros(envs, 0, dtype=torch.int64), masks)


def random_masks(envs: int, seed: int, density: float = 0.4) -> dict[str, torch.Tensor]:
    """Consistent masks: an op is legal where a slot is, GERMINATE where a blueprint is, WAIT always."""
    generator = torch.Generator().manual_seed(seed)
    slot = torch.rand(envs, len(Op), 3, generator=generator) < density
    slot[:, Op.WAIT] = True
    blueprint = (torch.rand(envs, 3, 7, generator=generator) < density) & slot[
        :, Op.GERMINATE, :, None
    ]
    slot[:, Op.GERMINATE] = blueprint.any(dim=2)
    return {"op": slot.any(dim=2), "slot": slot, "blueprint": blueprint}


def test_random_legal_is_uniform_over_ops_then_slots_then_heads():
    masks = random_masks(1, seed=3, density=0.6)
    draws, ops = 20_000, int(masks["op"].sum())
    many = {name: mask.expand(draws, *mask.shape[1:]) for name, mask in masks.items()}
    noise = torch.cat([Episode(torch.arange(100), 0, 4, 200).noise(step, 8) for step in range(200)])
    played = actions.random_legal(SPEC, observation(draws, many), noise).tolist()
    counts = Counter(action[0] for action in played)
    # Standard error of a share p over n draws is sqrt(p(1-p)/n) < 0.0036; five of them.
    assert all(
        abs(counts[op] / draws - 1 / ops) < 0.018
        for op in torch.nonzero(masks["op"][0]).flatten().tolist()
    )
    for op in counts:
        used = [action for action in played if action[0] == op]
        slots = torch.nonzero(masks["slot"][0, op]).flatten().tolist()
        if op != Op.WAIT:
            shares = Counter(action[1] for action in used)
            assert all(abs(shares[slot] / len(used) - 1 / len(slots)) < 0.05 for slot in slots)
    styles = Counter(action[3] for action in played if action[0] == Op.GERMINATE)
    assert len(styles) == 4 and max(styles.values()) < 1.3 * min(styles.values())


def test_grammar_mask_is_exact():
    """As the slow obvious reading of the masks has it."""
    masks, rows = random_masks(12, seed=6), actions.grammar(SPEC)
    legal = actions.grammar_mask(SPEC, observation(12, masks), rows)
    slots, blueprints = masks["slot"].tolist(), masks["blueprint"].tolist()
    for env, found in enumerate(legal.tolist()):
        for (op, slot, blueprint, *_), is_legal in zip(rows.tolist(), found, strict=True):
            grows = op != Op.GERMINATE or blueprints[env][slot][blueprint]
            assert is_legal == (op == Op.WAIT or (slots[env][op][slot] and grows))


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
        found = [
            vars(advance(slots, each, rules, torch.full((rows,), 50.0))[0])
            for each in (action, other)
        ]
        if not all(
            torch.equal(x.nan_to_num(-1.0), found[1][key].nan_to_num(-1.0))
            for key, x in found[0].items()
        ):
            read.add(name)
    assert read == set(actions.RELEVANT[op])


# --- budgets ---
