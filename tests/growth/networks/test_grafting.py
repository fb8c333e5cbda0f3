"""The gradient of a seed that does not act yet."""

import torch

from simic.growth.networks.grafting import straight_through

from ..worlds import generator

SHAPE = (3, 5, 2, 2, 4)  # rows, batch, height, width, channels


def test_straight_through_returns_h_itself_and_its_gradient_to_both() -> None:
    h, weight = (torch.randn(SHAPE, generator=generator(seed), dtype=torch.float64) for seed in (0, 1))
    h.requires_grad_()
    s = torch.full(SHAPE, torch.inf, dtype=torch.float64, requires_grad=True)
    joined = straight_through(h, s)
    assert joined.data_ptr() == h.data_ptr()
    grad_h, grad_s = torch.autograd.grad((joined * weight).sum(), (h, s))
    assert torch.equal(grad_h, weight)
    assert torch.equal(grad_s, weight)
