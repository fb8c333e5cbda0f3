"""Hosts whose matrix products are rounded to bfloat16."""

import pytest
import torch
from torch import nn

from simic.data.batches import Dataset
from simic.growth.batch.forward import BACKENDS
from simic.growth.batch.population import Population
from simic.growth.batch.template import Template
from simic.params import HostOptimizer

from ..worlds import DATA, FAMILIES, logits_of, make_order, make_population, mixed_slots, parameters

# 8 bits of mantissa: one product is off by up to 2⁻⁸ of its size, a few layers of them by a few times that.
TOLERANCE = 0.05
ENVS = 6  # many processors have no bfloat16 and imitate it slowly
FAMILY = pytest.mark.parametrize("family", FAMILIES)
BACKEND = pytest.mark.parametrize("backend", BACKENDS)


def rounded(family: str, backend: str) -> Population:
    return make_population(family, ENVS, backend, HostOptimizer(precision="bfloat16"))


@FAMILY
@BACKEND
def test_logits_differ_by_the_rounding_and_no_more(family: str, backend: str) -> None:
    exact, reduced = make_population(family, ENVS, backend), rounded(family, backend)
    slots, x = mixed_slots(exact), DATA[family].x[:4]
    mixed_slots(reduced)
    expected, found = logits_of(exact, slots, x), logits_of(reduced, slots, x)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    error = (found - expected).norm() / expected.norm()
    assert 1e-5 < error < TOLERANCE


@FAMILY
@BACKEND
def test_training_learns_and_keeps_float32(family: str, backend: str) -> None:
    """Weights, moments and losses are float32; every weight that moves in float32 moves; the loss falls alike."""
    exact, reduced = make_population(family, ENVS, backend), rounded(family, backend)
    slots, data = mixed_slots(exact), DATA[family]
    mixed_slots(reduced)
    before = parameters(exact)
    order = make_order(ENVS, 2, 4)
    expected, found = exact.train_epoch(slots, data, order), reduced.train_epoch(slots, data, order)
    assert found.loss.dtype == torch.float32
    assert found.finite.all()
    torch.testing.assert_close(found.loss, expected.loss, rtol=TOLERANCE, atol=TOLERANCE)
    for name, tensor in parameters(reduced).items():
        assert tensor.dtype == torch.float32
        moved, should = (tensor - before[name]).any(1), (parameters(exact)[name] - before[name]).any(1)
        assert torch.equal(moved, should), name


@FAMILY
def test_what_was_evaluated_before_changes_nothing_that_is_trained(family: str) -> None:
    """Casts of weights, once made without gradients, must not be found again."""
    fresh, seen = rounded(family, "auto"), rounded(family, "auto")
    slots, order = mixed_slots(fresh), make_order(ENVS, 2, 4)
    mixed_slots(seen)
    some = Dataset(DATA[family].x[:8], DATA[family].y[:8], DATA[family].classes)
    seen.evaluate(slots, some, torch.zeros(1, ENVS, seen.host.slots, dtype=torch.bool))
    for population in (fresh, seen):
        population.train_epoch(slots, DATA[family], order)
    theirs = parameters(seen)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in parameters(fresh).items())


class Strange(nn.Module):
    """Not said to be samplewise, so it runs under vmap (where torch leaves convolutions in float32)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.norm = nn.GroupNorm(1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.inner(x)).relu()


def test_a_users_module_under_vmap_is_rounded_too() -> None:
    x = torch.randn(4, 8, 4, 3, generator=torch.Generator().manual_seed(1))
    found = []
    for precision in ("float32", "bfloat16"):
        template = Template(Strange, "strange", features_last=True, precision=precision)
        weights = template.unpack(template.draw(torch.arange(4)))
        found.append(
            (
                template.run(weights, x),
                torch.cat([template.run_one([w[k] for w in weights], x[k : k + 1]) for k in range(4)]),
            )
        )
    for exact, reduced in zip(*found, strict=True):
        assert reduced.dtype == torch.float32
        assert 1e-5 < (reduced - exact).norm() / exact.norm() < TOLERANCE
