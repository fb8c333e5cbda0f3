"""Seeds for tables; formulas, fits, gradients and sizes are compared with the reference in tests/certify."""

import pytest
import torch
from torch import Tensor, nn

from simic.growth.batch.template import Template
from simic.growth.networks.blueprints import Blueprint, blueprints_of

from ..worlds import generator

KINDS = {item.name: item for item in blueprints_of("tables")}
ALL = pytest.mark.parametrize("item", KINDS.values(), ids=KINDS)
WIDTH, ROWS, FIXED = 8, 200, ("equality", "rbf", "bins", "quantile", "sort", "compare", "norm")


def table(columns: int, rows: int = ROWS) -> Tensor:
    """Some columns hold few values, so that ranks and bins meet ties; one holds a single value."""
    x = torch.randn(rows, columns, generator=generator(columns))
    x[:, 1] = (2 * x[:, 1]).round() / 2
    if columns > 4:
        x[:, 3] = 0.25
    return x


def module_of(item: Blueprint, fitted_to: Tensor) -> nn.Module:
    """With random weights in every parameter that trains, and fitted to the rows."""
    module, draw = item.build((fitted_to.shape[1], WIDTH)), generator(9)
    fitted = module.fit(fitted_to[None]) if item.name in FIXED else {}
    for name, parameter in module.named_parameters():
        value = fitted[name][0] if name in fitted else 0.5 * torch.randn(parameter.shape, generator=draw)
        parameter.data.copy_(value)
    return module


@pytest.mark.parametrize("columns", [2, 5, 8])
def test_a_row_is_sorted_whether_its_columns_are_odd_or_even(columns: int) -> None:
    """Sorting goes by pairs of neighbours."""
    rows, module = table(columns), KINDS["sort"].build((columns, WIDTH))
    assert torch.equal(module.raw(rows.T[:, None], {})[:, 0].T, rows.sort(dim=1).values)


@ALL
def test_several_tasks_are_fitted_each_by_itself(item: Blueprint) -> None:
    template = Template(lambda: item.build((5, WIDTH)), item.name)
    assert template.fits == (item.name in FIXED)
    if not template.fits:
        return
    tasks = torch.stack([table(5), 3 * table(5).flip(0), torch.randn(ROWS, 5, generator=generator(2))])
    together, alone = template.fit(tasks), [template.fit(rows[None]) for rows in tasks]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-6)
    assert not torch.equal(together[0], together[2])
    rows = template.draw(torch.arange(3))
    filled = dict(zip(template.names, template.layout.unpack(template.with_fit(rows, together)), strict=True))
    fitted = item.build((5, WIDTH)).fit(tasks)
    for name, before in zip(template.names, template.layout.unpack(rows), strict=True):
        expected = fitted.get(name, before)
        torch.testing.assert_close(filled[name], expected.reshape(before.shape), rtol=1e-5, atol=1e-6, msg=name)


def test_a_gate_is_pulled_towards_zero_and_never_below() -> None:
    """Where the loss does not depend on a column the pull, 0.002, is its gradient; where the gate is shut, none."""
    module = module_of(KINDS["gate"], table(5))
    gate, hidden = module.get_parameter("gate"), module.get_parameter("hidden.weight")
    gate.data = torch.tensor([1.0, 0.5, 0.2, -0.1, 0.3])
    hidden.data[:, :2] = 0.0
    module(table(5)).square().mean().backward()
    assert gate.grad is not None and gate.grad[:2].tolist() == pytest.approx([0.002, 0.002])
    assert gate.grad[3] == 0 and (gate.grad[[2, 4]] != 0.002).all()
