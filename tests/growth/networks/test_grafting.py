"""Blend operators and the gradients they let through."""

import torch

from simic.growth.life.vocabulary import Blend
from simic.growth.networks.grafting import Gate, blend, straight_through

from ..worlds import generator

SHAPE = (3, 5, 2, 2, 4)  # rows, batch, height, width, channels


def features(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=generator(seed), dtype=torch.float64)


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
    h, weight = features(0).requires_grad_(), features(1)
    s = torch.full(SHAPE, torch.inf, dtype=torch.float64, requires_grad=True)
    joined = straight_through(h, s)
    assert joined.data_ptr() == h.data_ptr()
    grad_h, grad_s = torch.autograd.grad((joined * weight).sum(), (h, s))
    assert torch.equal(grad_h, weight)
    assert torch.equal(grad_s, weight)
