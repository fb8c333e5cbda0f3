"""The second implementation of the learner by closed forms and by torch."""

import math

import pytest
import torch

from simic.certify import agent, ppo
from simic.certify.agent import Factor, Interface, Network, Scale
from tests import standard

FACTORS = (Factor("op", 3, "nothing"), Factor("slot", 2, "op"), Factor("kind", 4, "slot"))
MATTERS = torch.tensor([[True, False, False], [True, True, True], [True, True, False]])
INTERFACE = Interface(FACTORS, MATTERS, torch.zeros(5, dtype=torch.bool), 0, 0)


@pytest.mark.parametrize(("core", "theirs", "gates"), [("lstm", torch.nn.LSTM, 4), ("gru", torch.nn.GRU, 3)])
def test_cells_are_torchs(core, theirs, gates):
    torch.manual_seed(1)
    module = theirs(6, 7).double()
    weights = {f"actor.core.rnn.{name}": x.detach() for name, x in module.named_parameters()}
    assert weights["actor.core.rnn.weight_hh_l0"].shape[0] == 7 * gates
    network = Network(weights, INTERFACE, standard.Policy(core=core, core_units=7))
    x = torch.randn(4, 3, 6, dtype=torch.float64)
    assert torch.allclose(network._remembered("actor.core.rnn", x), module(x)[0], atol=1e-12)


def test_masks_depend_on_the_op_and_the_slot():
    masks = {
        "op": torch.tensor([[True, True, False]]),
        "slot": torch.tensor([[[True, True], [True, False], [True, True]]]),
        "kind": torch.tensor([[[True, True, False, False], [True, True, True, True]]]),
    }
    op, slot = torch.tensor([1]), torch.tensor([0])
    assert [INTERFACE.legal(masks, k, op, slot).sum().item() for k in range(3)] == [2, 1, 2]
    assert INTERFACE.open(masks, torch.tensor([[1, 0, 1]])).tolist() == [[True, False, True]]
    assert INTERFACE.open(masks, torch.tensor([[0, 0, 0]])).tolist() == [[True, False, False]]


def test_a_decision_lies_in_its_share_of_the_noise():
    shares, chosen = torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([1])
    found = [float(agent._misplaced(shares, chosen, torch.tensor([x]))) for x in (0.1, 0.3, 0.9)]
    assert found == pytest.approx([0.1, 0.0, 0.2])
    assert float(agent._misplaced(shares, torch.tensor([2]), None)) == pytest.approx(0.2)


def flags(*values):
    return torch.tensor(values, dtype=torch.bool)[:, None]


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        ((0, 1), (0, 0), (1.0 + 0.9 * 5.0 - 3.0 + 0.9 * 0.5 * (2.0 - 5.0), 2.0 - 5.0)),
        ((0, 0), (0, 1), (1.0 + 0.9 * 5.0 - 3.0 + 0.9 * 0.5 * (2.0 + 0.9 * 7.0 - 5.0), 2.0 + 0.9 * 7.0 - 5.0)),
        ((1, 0), (0, 0), (1.0 - 3.0, 0.0)),
        ((0, 1), (0, 1), (1.0 + 0.9 * 5.0 - 3.0 + 0.9 * 0.5 * (2.0 - 5.0), 2.0 - 5.0)),
    ],
)
def test_advantages_are_those_of_the_definition(terminated, truncated, expected):
    column = lambda *values: torch.tensor(values, dtype=torch.float64)[:, None]  # noqa: E731
    valid = flags(1, not (terminated[0] or truncated[0]))
    found, returns = ppo.advantages(
        column(1.0, 2.0), column(3.0, 5.0), column(5.0, 7.0), flags(*terminated), flags(*truncated), valid, 0.9, 0.5
    )
    assert found[:, 0].tolist() == pytest.approx(expected)
    assert returns[0, 0].item() == pytest.approx(expected[0] + 3.0)


def test_explained_variance_is_the_share_that_values_explain():
    returns, values = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 3.0, 3.0])
    assert ppo.summary(returns, returns, values)["explained_variance"] == pytest.approx(1 - 0.1875 / 1.25)
    assert math.isnan(ppo.summary(returns, torch.ones(4), values)["explained_variance"])


def test_scales_are_those_of_all_rows_and_leave_flags_alone():
    rows = torch.randn(50, 3, dtype=torch.float64) * 4 + 7
    rows[7, 1] = math.nan
    whole = rows[~rows.isnan().any(dim=1)]
    scale = Scale(0.0, torch.zeros(3), torch.zeros(3)).with_rows(rows[:20]).with_rows(rows[20:])
    assert (scale.count, scale.mean) == (49, pytest.approx(whole.mean(dim=0)))
    assert scale.variance.tolist() == pytest.approx(whole.var(dim=0, correction=0).tolist())
    seen = scale.see(whole, torch.tensor([False, True, False]))
    assert torch.equal(seen[:, 1], whole[:, 1]) and float(seen[:, 0].mean()) == pytest.approx(0.0, abs=1e-9)


def test_a_step_is_torchs_adam_behind_a_clipped_norm():
    settings = standard.PPOParams(max_grad_norm=0.5)
    weight = torch.randn(4, 3, dtype=torch.float64)
    theirs = weight.clone().requires_grad_()
    adam = torch.optim.Adam([theirs], lr=settings.learning_rate, eps=settings.adam_eps)
    nothing = {"w": torch.zeros_like(weight)}
    learner = ppo.Learner({"w": weight}, nothing, nothing, 0, 0, 0, settings.learning_rate)
    update = ppo.Update(None, INTERFACE, standard.Train(ppo=settings), 1, 0)
    for _ in range(3):
        gradient = torch.randn(4, 3, dtype=torch.float64)
        theirs.grad = gradient.clone()
        norm = float(torch.nn.utils.clip_grad_norm_([theirs], settings.max_grad_norm))
        adam.step()
        learner = update._stepped(learner, {"w": gradient}, norm)
    assert torch.allclose(learner.weights["w"], theirs.detach(), rtol=1e-5)
