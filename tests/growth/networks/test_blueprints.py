"""Blueprints: exact counts, shape kept, open to learning from the first step."""

import pytest
import torch
from torch import nn

from simic.errors import SimicError
from simic.growth.networks.blueprints import Blueprint, blueprint, blueprints_of

# Parameters and multiply-adds per sample at c features, n positions; attention also multiplies n × n scores twice.
# Those of the other families are compared with the reference (tests/reference/test_networks.py).
FORMULAS = {
    "norm": (lambda c: 2 * c + 1, lambda c, n: 0),
    "lora": (lambda c: 16 * c, lambda c, n: n * 16 * c),
    "lora_large": (lambda c: 64 * c, lambda c, n: n * 64 * c),
    "attention": (lambda c: 4 * c * c + 4 * c, lambda c, n: n * 4 * c * c + 2 * n * n * c),
    "mlp_small": (lambda c: 4 * c * c + 3 * c, lambda c, n: n * 4 * c * c),
    "mlp": (lambda c: 8 * c * c + 5 * c, lambda c, n: n * 8 * c * c),
}
SHAPES = {"cnn": (16, 4, 4), "mlp": (24,), "transformer": (5, 24)}
ALL = [(item, shape) for family, shape in SHAPES.items() for item in blueprints_of(family)]


@pytest.mark.parametrize("width", [4, 384])
def test_counts_of_a_transformers_seeds_are_the_formulas(width: int) -> None:
    """In the order of the action."""
    assert [item.name for item in blueprints_of("transformer")] == list(FORMULAS)
    for item in blueprints_of("transformer"):
        params, work = FORMULAS[item.name]
        assert item.params((7, width)) == params(width), item.name
        assert item.flops((7, width)) == 2 * work(width, 7), item.name


@pytest.mark.parametrize(
    ("item", "shape"), ALL, ids=[f"{item.family}-{item.name}" for item, _ in ALL]
)
@pytest.mark.parametrize("closed", [False, True])
def test_closed_it_is_the_identity_and_it_learns_from_any_start(
    item: Blueprint, shape, closed: bool
) -> None:
    """A zero branch behind a ReLU gets no gradient if the ReLU has slope 0 at 0; then a seed would be dead for ever."""
    torch.manual_seed(0)
    module = item.build(shape)
    x = torch.randn(16, *shape)
    target = torch.randn(16, *shape)
    for name in item.closing if closed else ():
        nn.init.zeros_(module.get_parameter(name))
    # Attention scales its input and has no branch to close.
    assert (
        not closed or torch.equal(module(x), x) or (item.name == "attention" and not item.closing)
    )
    start = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (module(x) - target).square().mean().backward()
        optimizer.step()
    for (name, parameter), before in zip(module.named_parameters(), start, strict=True):
        assert not torch.equal(parameter, before), name


def test_a_name_taken_twice_an_unknown_family_and_heads_that_do_not_divide_the_width_are_refused() -> (
    None
):
    with pytest.raises(SimicError, match="'norm' of family 'mlp' is registered already"):
        blueprint("norm", family="mlp")(nn.LayerNorm)
    with pytest.raises(SimicError, match="known families: cnn, mlp"):
        blueprints_of("rnn")
    [attention] = [item for item in blueprints_of("transformer") if item.name == "attention"]
    with pytest.raises(
        SimicError, match="attention over 10 features: must be a multiple of its 4 heads"
    ):
        attention.build((3, 10))
