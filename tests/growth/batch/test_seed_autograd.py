"""Seeds leave and join the stacked features as one host after the other would."""

import numpy as np
import pytest
import torch
from torch import Tensor

from simic.growth.batch.forward import fork, join
from simic.growth.batch.groups import SlotGroups, SlotState, training_plan
from simic.growth.life.vocabulary import Blend, Stage
from simic.growth.networks.grafting import blend, straight_through

from ..worlds import generator

STAGES = [
    Stage.TRAINING,
    Stage.BLENDING,
    Stage.BLENDING,
    Stage.HOLDING,
    Stage.TRAINING,
    Stage.DORMANT,
    Stage.FOSSILIZED,
]
OPERATORS = [Blend.ADD, Blend.MULTIPLY, Blend.GATE, Blend.MULTIPLY, Blend.ADD, Blend.ADD, Blend.GATE]
ALPHA = torch.tensor([0.0, 0.25, 0.75, 1.0, 0.0, 0.0, 0.5], dtype=torch.float64)
SHAPE = (len(STAGES), 3, 2, 2, 4)  # hosts, batch, height, width, channels


def groups_of(isolated: frozenset[Stage], stages: list[Stage] = STAGES) -> SlotGroups:
    """One slot of seven hosts, two blueprints in an order of their own."""
    stage = np.array(stages)[:, None]
    blueprint = np.array([1, 0, 1, 0, 0, 1, 0])[:, None]
    never, age = np.zeros_like(stage, dtype=bool), np.zeros_like(stage)
    state = SlotState(stage, blueprint, np.array(OPERATORS)[:, None], never, (ALPHA <= 0).numpy()[:, None], age)
    [groups] = training_plan(state, ALPHA[:, None], isolated).slots
    assert groups is not None
    return groups


def values(seed: int, rows: int, *shape: int) -> Tensor:
    return torch.randn(rows, *(shape or SHAPE[1:]), generator=generator(seed), dtype=torch.float64).requires_grad_()


def one_by_one(h: Tensor, s: Tensor, gate: Tensor, groups: SlotGroups) -> Tensor:
    """The definition: each host by itself; ``s`` is multiplied by what the seed saw, so that it has a path to it."""
    features = list(h.split(1))
    gated = [] if (found := groups.gated()) is None else found.positions.tolist()
    for position, stream in enumerate(groups.streams.tolist()):
        own = features[stream]
        seen = own if position in groups.open.tolist() else own.detach()
        grown = s[position : position + 1] * seen
        item = next((item for item in groups.blended if position in item.positions.tolist()), None)
        if item is None:
            features[stream] = straight_through(own, grown)
            continue
        alpha = item.alpha[item.positions == position]
        share = gate[gated.index(position)][None] if item.operator is Blend.GATE else None
        features[stream] = blend(item.operator, own, grown, seen, alpha, share)
    return torch.cat(features)


@pytest.mark.parametrize("isolated", [frozenset(), frozenset({Stage.TRAINING, Stage.HOLDING}), frozenset(Stage)])
def test_values_and_gradients_are_those_of_each_host_by_itself(isolated: frozenset[Stage]) -> None:
    groups = groups_of(isolated)
    h, s, gate, weight = (
        values(0, len(STAGES)),
        values(1, len(groups.streams)),
        values(2, 2, 3, 1),
        values(3, len(STAGES)),
    )
    whole, x = fork(h, groups.streams, groups.open)
    ours = join(whole, s * x, x, gate, groups)
    expected = one_by_one(h, s, gate, groups)
    torch.testing.assert_close(ours, expected)
    grads = torch.autograd.grad((ours * weight).sum(), (h, s, gate))
    torch.testing.assert_close(grads, torch.autograd.grad((expected * weight).sum(), (h, s, gate)))


def test_seeds_in_training_leave_the_features_as_they_are_and_learn_from_their_gradient() -> None:
    groups = groups_of(frozenset(), [Stage.TRAINING if stage is not Stage.DORMANT else stage for stage in STAGES])
    h, weight = values(0, len(STAGES)), values(3, len(STAGES))
    s = torch.full((len(groups.streams), *SHAPE[1:]), torch.inf, dtype=torch.float64, requires_grad=True)
    joined = join(h, s, h.detach()[groups.streams], None, groups)
    assert joined.data_ptr() == h.data_ptr()
    grad_h, grad_s = torch.autograd.grad((joined * weight).sum(), (h, s))
    assert torch.equal(grad_h, weight)
    assert torch.equal(grad_s, weight[groups.streams])


@pytest.mark.parametrize("open_positions", [[], [1], [0, 1]])
def test_only_open_seeds_send_a_gradient_back(open_positions: list[int]) -> None:
    h, rows = values(0, 3), torch.tensor([2, 0])
    whole, x = fork(h, rows, torch.tensor(open_positions, dtype=torch.int64))
    assert torch.equal(whole, h)
    assert torch.equal(x, h[rows])
    if not open_positions:
        assert not x.requires_grad
        return
    weight = torch.full_like(x, torch.inf)  # what an isolated seed would send is dropped, not multiplied by 0
    weight[open_positions] = 2.0
    (grad,) = torch.autograd.grad((x * weight).sum(), h)
    expected = torch.zeros_like(h)
    expected[rows[open_positions]] = 2.0
    assert torch.equal(grad, expected)
