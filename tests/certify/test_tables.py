"""Seeds for tables in the reference: features by hand, and values, gradients and sizes beside those that grow."""

import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from simic.certify import modules, streams
from simic.certify.networks import anatomy
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.params import Host

SHAPE = (5, 8)  # columns, width
TABLE = Host(family="tables", preset="baseline")
GROWN = {item.name: item for item in blueprints_of("tables")}


def rows(count: int, seed: int) -> Tensor:
    """The last column has few values, the one before it one."""
    x = torch.randn(count, SHAPE[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[:, -1], x[:, -2] = x[:, -1].round(), 0.5
    return x.float().double()  # as the data are kept


@pytest.mark.parametrize("name", modules.TABLES_SEEDS)
def test_a_seed_is_the_one_that_grows(name: str) -> None:
    part, module = modules.TABLES_SEEDS[name](SHAPE), GROWN[name].build(SHAPE).double()
    own = dict(module.named_parameters())
    assert [entry.name for entry in part.entries] == list(own)
    assert part.fitted == {key for key, parameter in own.items() if not parameter.requires_grad}
    assert (part.params, part.flops) == (GROWN[name].params(SHAPE), GROWN[name].flops(SHAPE))
    values = part.draw(streams.key(3, 0))
    values["out"] = torch.linspace(-1, 1, values["out"].numel(), dtype=torch.float64).reshape_as(values["out"])
    if part.fit is not None:
        fitted = part.fit(rows(200, 0))
        theirs = module.fit(rows(200, 0)[None])  # pyright: ignore[reportCallIssue] - who has such parameters has it
        for key, value in fitted.items():
            torch.testing.assert_close(value, theirs[key][0], rtol=1e-9, atol=1e-12)
        values |= fitted
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(values[key])
    learned = [values[key].requires_grad_() for key in own if key not in part.fitted]
    found, expected = part.run(values, rows(40, 1)), module(rows(40, 1))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    slopes = torch.autograd.grad(found.sin().sum(), learned)
    others = torch.autograd.grad(expected.sin().sum(), [p for p in own.values() if p.requires_grad])
    for slope, other in zip(slopes, others, strict=True):
        torch.testing.assert_close(slope, other, rtol=1e-9, atol=1e-11)


def test_their_order_is_that_of_the_actions() -> None:
    assert list(modules.TABLES_SEEDS) == list(GROWN)


def test_a_host_is_the_one_that_grows() -> None:
    body, host = anatomy(TABLE, (1, 1, 12), 3), build_host(TABLE, (1, 1, 12), 3)
    assert (body.params, body.flops, body.shapes) == (host.params, host.flops_per_sample, host.slot_shapes)


def test_a_bin_is_how_many_edges_a_value_has_reached() -> None:
    """24 rows 0 … 23: the edges are 2, 4, … 22. Of three values that are below all, on the third and above all."""
    part = modules.bins((1, 4))
    assert part.fit is not None
    fitted = part.fit(torch.arange(24.0, dtype=torch.float64)[:, None])
    assert fitted["edges"].flatten().tolist() == [2.0 * k for k in range(1, 12)]
    # Each bin holds a twelfth: mean 1/12, deviation sqrt(11) / 12; 12 features weigh 3.
    assert fitted["mean"].tolist() == pytest.approx([1 / 12] * 12)
    assert fitted["scale"].tolist() == pytest.approx([36 / math.sqrt(11)] * 12)
    values = fitted | {"out": torch.eye(12, dtype=torch.float64)}
    found = part.run(values, torch.tensor([[-9.0], [6.0], [99.0]], dtype=torch.float64))
    assert found.argmax(dim=1).tolist() == [0, 3, 11]


def test_normal_scores_are_those_of_the_rank() -> None:
    part = modules.normal_scores((1, 1))
    assert part.fit is not None
    fitted = part.fit(torch.arange(240.0, dtype=torch.float64)[:, None])
    assert fitted["knots"].flatten().tolist() == [5.0 + 10.0 * k for k in range(24)]
    plain = {**fitted, "mean": torch.zeros(1), "scale": torch.ones(1), "out": torch.ones(1, 1, dtype=torch.float64)}
    # 25 has reached three knots: 5, 15 and itself.
    found = part.run(plain, torch.tensor([[25.0]], dtype=torch.float64))
    assert float(found) == pytest.approx(NormalDist().inv_cdf(3.5 / 25))


def test_what_does_not_vary_says_nothing() -> None:
    part = modules.ordered((2, 1))
    assert part.fit is not None
    assert part.fit(torch.full((9, 2), 0.25, dtype=torch.float64))["scale"].tolist() == [0.0, 0.0]
