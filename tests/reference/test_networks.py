"""The reference's hosts and seeds compute what those that grow compute; the latter have tests of their own."""

import pytest
import torch
from torch import Tensor

from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import PRESETS, build_host
from tests.reference import networks, streams
from tests.reference.bank import NoReference
from tests.reference.modules import BLUEPRINTS
from tests.standard import Host

FAMILIES = ("cnn", "mlp", "tables")
SHAPES = {"mlp": (16,), "tables": (5, 8)}  # of features; of a table its columns and the width
SEEDS = [(family, item) for family in FAMILIES for item in blueprints_of(family)]


def rows(count: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Draw samples as they are kept in float32; of a table the last column has few values, the one before it one."""
    x = torch.randn(
        count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    if shape == SHAPES["tables"][:1]:
        x[:, -1] = x[:, -1].round()
        x[:, -2] = 0.5
    return x.float().double()


@pytest.mark.parametrize(
    ("family", "item"), SEEDS, ids=[f"{family}-{item.name}" for family, item in SEEDS]
)
def test_a_seed_is_the_one_that_grows(family, item) -> None:
    """Names, sizes, what is fitted, values and gradients."""
    shape = SHAPES.get(family, (16, 4, 4))
    part = BLUEPRINTS[family][item.name](shape)
    module = item.build(shape).double()
    own = dict(module.named_parameters())
    assert [entry.name for entry in part.entries] == list(own)
    assert part.fitted == {key for key, parameter in own.items() if not parameter.requires_grad}
    assert (part.params, part.flops) == (item.params(shape), item.flops(shape))
    sample = item.shapes(shape)[0]
    values = part.draw(streams.key(3, 0))
    for name in {
        "out",
        *part.closing,
    } & values.keys():  # zeros would hide what they are multiplied with
        values[name] = torch.linspace(-1, 1, values[name].numel(), dtype=torch.float64).reshape_as(
            values[name]
        )
    if part.fit is not None:
        fitted = part.fit(rows(200, sample, 0))
        theirs = module.fit(rows(200, sample, 0)[None])
        for key, value in fitted.items():
            torch.testing.assert_close(value, theirs[key][0], rtol=1e-9, atol=1e-12)
        values |= fitted
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(values[key])
    learned = [values[key].requires_grad_() for key in own if key not in part.fitted]
    found = part.run(values, rows(40, sample, 1))
    expected = module(rows(40, sample, 1))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    slopes = torch.autograd.grad(found.sin().sum(), learned)
    others = torch.autograd.grad(expected.sin().sum(), [p for p in own.values() if p.requires_grad])
    torch.testing.assert_close(slopes, others, rtol=1e-9, atol=1e-11)


HOSTS = [(family, preset) for family in FAMILIES for preset in PRESETS[family]]


@pytest.mark.parametrize(
    ("family", "preset"), HOSTS, ids=[f"{family}-{preset}" for family, preset in HOSTS]
)
def test_a_host_is_the_one_that_grows(family: str, preset: str) -> None:
    config = Host(family=family, preset=preset)
    shape = (1, 1, 12) if family == "tables" else (1, 9, 8)
    body = networks.anatomy(config, shape, 3)
    host = build_host(config, shape, 3)
    assert (body.params, body.flops, body.shapes) == (
        host.params,
        host.flops_per_sample,
        host.slot_shapes,
    )


def test_blueprints_are_in_the_order_of_the_actions_and_unknown_hosts_are_refused() -> None:
    for family in FAMILIES:
        assert list(BLUEPRINTS[family]) == [item.name for item in blueprints_of(family)]
    with pytest.raises(NoReference, match="transformer"):
        networks.anatomy(Host(family="transformer"), (16,), 256)
