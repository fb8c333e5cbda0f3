"""Forms of an action and the sampling of legal ones."""

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
    draws = 20_000
    many = {name: mask.expand(draws, *mask.shape[1:]) for name, mask in masks.items()}
    noise = torch.cat([Episode(torch.arange(100), 0, 4, 200).noise(step, 8) for step in range(200)])
    samples = actions.random_legal(SPEC, observation(draws, many), noise)

    def check(choices: torch.Tensor, legal: torch.Tensor) -> None:
        """Five standard errors of a share p over n draws, sqrt(p(1-p)/n) ≤ 0.5/sqrt(n)."""
        shares = torch.bincount(choices, minlength=len(legal)) / len(choices)
        assert (shares - legal / legal.sum()).abs().max() < 2.5 / len(choices) ** 0.5

    check(samples[:, 0], masks["op"][0])
    for op in samples[:, 0].unique().tolist():
        if op != Op.WAIT:
            check(samples[samples[:, 0] == op, 1], masks["slot"][0, op])
    check(samples[samples[:, 0] == Op.GERMINATE, 3], torch.ones(4))


def test_grammar_mask_is_exact():
    """As the slow obvious reading of the masks has it."""
    masks = random_masks(12, seed=6)
    rows = actions.grammar(SPEC)
    legal = actions.grammar_mask(SPEC, observation(12, masks), rows)
    for env in range(12):
        slots = masks["slot"][env].tolist()
        blueprints = masks["blueprint"][env].tolist()
        for (op, slot, blueprint, *_), is_legal in zip(rows.tolist(), legal[env], strict=True):
            grows = op != Op.GERMINATE or blueprints[slot][blueprint]
            assert is_legal == (op == Op.WAIT or (slots[op][slot] and grows))


@pytest.mark.parametrize("op", list(Op))
def test_an_op_reads_exactly_the_heads_that_its_row_names(op):
    """Change one head of many actions: some slot's life takes another course if and only if the table says so."""
    stages = (Stage.DORMANT, Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
    rows = 200 * len(stages)
    draw = torch.Generator().manual_seed(1)
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
    heads = [torch.randint(head.size, (rows,), generator=draw) for head in SPEC.heads]
    action = Action(*heads)._replace(op=torch.full((rows,), int(op)))
    rules = Lifecycle(gates="permissive", sequential_development=False, auto_advance=False)

    def course(action: Action) -> dict[str, list]:
        after, _ = advance(slots, action, rules, torch.full((rows,), 50.0))
        return {name: value.nan_to_num(-1.0).tolist() for name, value in vars(after).items()}

    relevant = set()
    for name, head in zip(Action._fields[1:], SPEC.heads[1:], strict=True):
        changed = action._replace(**{name: (getattr(action, name) + 1) % head.size})
        if course(changed) != course(action):
            relevant.add(name)
    assert relevant == set(actions.RELEVANT[op])
