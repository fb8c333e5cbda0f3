"""Blend operators and the gradients they let through."""

import pytest
import torch

from simic.growth.life.vocabulary import Blend
from simic.growth.networks.grafting import Gate, blend, seed_input, straight_through

from ..worlds import generator

SHAPE = (3, 5, 2, 2, 4)  # rows, batch, height, width, channels


def features(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("operator", list(Blend))
def test_alpha_zero_is_the_identity(operator: Blend) -> None:
    h, s = features(0), features(1)
    gate = torch.rand(3, 5, 1, dtype=torch.float64) if operator is Blend.GATE else None
    assert torch.equal(blend(operator, h, s, h, torch.zeros(3, dtype=torch.float64), gate), h)


def test_the_operators_are_their_formulas() -> None:
    h, s, x = features(0), features(1), features(2)
    alpha = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
    a = alpha.view(3, 1, 1, 1, 1)
    gate = torch.rand(3, 5, 1, dtype=torch.float64, generator=generator(3))
    g = gate.view(3, 5, 1, 1, 1)
    torch.testing.assert_close(blend(Blend.ADD, h, s, x, alpha, None), h + a * (s - h))
    torch.testing.assert_close(blend(Blend.MULTIPLY, h, s, x, alpha, None), h * (1 + a * torch.tanh(s - x)))
    torch.testing.assert_close(blend(Blend.GATE, h, s, x, alpha, gate), h + a * g * (s - h))


def test_the_gate_is_a_probability_per_sample() -> None:
    for shape in ((6, 2, 2), (6,)):
        values = Gate(shape)(torch.randn(5, *shape))
        assert values.shape == (5, 1)
        assert ((values > 0) & (values < 1)).all()


def test_straight_through_returns_h_itself_and_its_gradient_to_both() -> None:
    h = features(0).requires_grad_()
    s = torch.full((2, *SHAPE[1:]), torch.inf, dtype=torch.float64, requires_grad=True)
    rows, weight = torch.tensor([2, 0]), features(1)
    joined = straight_through(h, s, rows)
    assert joined.data_ptr() == h.data_ptr()
    grad_h, grad_s = torch.autograd.grad((joined * weight).sum(), (h, s))
    assert torch.equal(grad_h, weight)
    assert torch.equal(grad_s, weight[rows])


@pytest.mark.parametrize("open_positions", [[], [1], [0, 1]])
def test_only_open_seeds_send_a_gradient_back(open_positions: list[int]) -> None:
    h, rows = features(0).requires_grad_(), torch.tensor([2, 0])
    x = seed_input(h, rows, torch.tensor(open_positions, dtype=torch.int64))
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
