"""Templates: what is redrawn, what stays, what cannot be stacked."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simic.errors import SimicError
from simic.growth.batch.template import Template
from simic.rng import Purpose, key

STREAMS = key(5, Purpose.SEED_INIT, torch.arange(64))


class Mixed(nn.Module):
    """One random scalar pair, constants and a layer with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 3.0))
        self.layer = nn.Linear(25, 4)
        self.single = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.single(self.layer(x).sum(-1, keepdim=True)) * self.scale


def test_constants_stay_and_random_tensors_are_redrawn_within_their_fan_in() -> None:
    template = Template(Mixed, "mixed")
    weights = dict(zip(template.names, template.layout.unpack(template.draw(STREAMS)), strict=True))
    assert (weights["scale"] == 3.0).all()
    for name, bound in (
        ("layer.weight", 0.2),
        ("layer.bias", 0.2),
        ("single.weight", 1.0),
        ("single.bias", 1.0),
    ):
        values = weights[name]
        assert 0.9 * bound < values.abs().max() <= bound
        assert len(values.flatten().unique()) > 0.99 * values.numel()
        # uniform in ±b has standard deviation b/√3
        assert values.std().item() == pytest.approx(bound / 3**0.5, rel=0.15)


def test_buffers_and_a_random_vector_without_a_weight_are_refused() -> None:
    with pytest.raises(SimicError, match="odd: modules with buffers"):
        Template(lambda: nn.BatchNorm2d(4), "odd")
    with pytest.raises(SimicError, match="odd: parameter '0' starts at random"):
        Template(lambda: nn.ParameterList([torch.randn(4)]), "odd")


class OwnNorm(nn.Module):
    """A user's seed that calls the function, not the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.bias = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, 4, self.weight, self.bias)


def test_a_users_norm_learns_from_features_without_gradient() -> None:
    """torch's own backward ends the process there on channels-last maps (growth.kernels)."""
    template = Template(OwnNorm, "own norm")
    x = torch.randn(1, 5, 4, 4, 16, generator=torch.Generator().manual_seed(1))
    weight = torch.full((16,), 2.0, requires_grad=True)
    bias = torch.zeros(16, requires_grad=True)
    template.run_one((weight, bias), x).square().sum().backward()
    normed = F.group_norm(x[0].movedim(-1, 1).contiguous(), 4)
    torch.testing.assert_close(weight.grad, 4 * normed.square().sum((0, 2, 3)))
    torch.testing.assert_close(bias.grad, 4 * normed.sum((0, 2, 3)), atol=1e-4, rtol=1e-4)
