"""Seeds of the family ``tables``: each computes an obvious formula of a row, with constants that numpy finds too."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor, nn

from simic.growth.batch.template import Template
from simic.growth.networks.blueprints import Blueprint, blueprints_of
from simic.growth.networks.hosts import build_host
from simic.params import Host

from ..worlds import generator

Array = NDArray[np.float64]
KINDS = {item.name: item for item in blueprints_of("tables")}
ALL = pytest.mark.parametrize("item", KINDS.values(), ids=KINDS)
WIDTH, ROWS, FIXED = 8, 200, ("equality", "rbf", "bins", "quantile", "sort", "compare", "norm")
WIDTHS = pytest.mark.parametrize("columns", [2, 5, 8])  # odd and even: sorting goes by pairs of neighbours


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


# --- the formulas, a row at a time ------------------------------------------------------------------------------------


def pairs(columns: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(columns) for j in range(columns) if i < j]


def equality(row: Array, known: dict[str, Array]) -> list[float]:
    return [max(np.exp(-40 * (row[i] - row[j]) ** 2), np.exp(-20.0)) for i, j in pairs(len(row))]


def compare(row: Array, known: dict[str, Array]) -> list[float]:
    return [np.tanh(3 * (row[i] - row[j])) for i, j in pairs(len(row))]


def rbf(row: Array, known: dict[str, Array]) -> list[float]:
    return [np.exp(max(-((row - centre) ** 2).sum() / known["width"][0], -20.0)) for centre in known["centres"]]


def bins(row: Array, known: dict[str, Array]) -> list[float]:
    """Bin by bin, in each the columns: how many edges lie at or below the value is the bin's number."""
    which = [int((known["edges"][:, j] <= row[j]).sum()) for j in range(len(row))]
    return [float(which[j] == b) for b in range(12) for j in range(len(row))]


def quantile(row: Array, known: dict[str, Array]) -> list[float]:
    """Of 24 knots k lie at or below the value: Φ⁻¹((k + ½) / 25)."""
    return [norm.ppf(((known["knots"][:, j] <= row[j]).sum() + 0.5) / 25) for j in range(len(row))]


def direction(row: Array, known: dict[str, Array]) -> list[float]:
    return list(row / max(np.sqrt((row**2).sum()), 1e-6))


def mlp(row: Array, known: dict[str, Array]) -> Array:
    return np.maximum(known["hidden.weight"] @ row + known["hidden.bias"], 0)


def gated(row: Array, known: dict[str, Array]) -> Array:
    both = known["hidden.weight"] @ row + known["hidden.bias"]
    return both[:WIDTH] * both[WIDTH:]


def gate(row: Array, known: dict[str, Array]) -> Array:
    return np.maximum(known["hidden.weight"] @ (np.maximum(known["gate"], 0) * row) + known["hidden.bias"], 0)


def periodic(row: Array, known: dict[str, Array]) -> list[float]:
    """A parameter is drawn in ±1/√D: 4 · exp(0.75 √D p) lies in 4 · e^±0.75."""
    angles = [
        row[j] * 4 * np.exp(0.75 * len(row) ** 0.5 * p[j]) for p in known["log_frequency"] for j in range(len(row))
    ]
    return [*np.sin(angles), *np.cos(angles)]


FORMULAS: dict[str, Callable[[Array, dict[str, Array]], list[float] | Array]] = {
    "mlp": mlp, "equality": equality, "periodic": periodic, "gated": gated, "rbf": rbf, "gate": gate, "bins": bins,
    "quantile": quantile, "sort": lambda row, known: sorted(row), "compare": compare, "norm": direction,
}  # fmt: skip


def test_every_blueprint_has_its_formula() -> None:
    assert list(KINDS) == list(FORMULAS)


@WIDTHS
@ALL
def test_a_seed_is_its_formula_times_a_matrix(item: Blueprint, columns: int) -> None:
    fitted_to, module = table(columns), module_of(item, table(columns))
    known = {name: parameter.detach().double().numpy() for name, parameter in module.named_parameters()}
    unseen = torch.randn(60, columns, generator=generator(1))
    unseen[:20] = fitted_to[:20]  # values on edges and knots, and centres themselves
    features = np.array([FORMULAS[item.name](row, known) for row in unseen.double().numpy()])
    if item.name in FIXED:
        features = (features - known["mean"]) * known["scale"]
    else:
        features *= 3
    expected = torch.tensor(features @ known["out"], dtype=torch.float32)
    torch.testing.assert_close(module(unseen.view(-1, 1, 1, columns)), expected, rtol=1e-4, atol=1e-4)


@WIDTHS
@pytest.mark.parametrize("name", FIXED)
def test_fixed_features_have_mean_0_and_one_scale_over_the_rows_they_were_fitted_to(name: str, columns: int) -> None:
    """3 min(1, √(16 / features)); one that does not vary stays 0."""
    rows = table(columns)
    module = module_of(KINDS[name], rows)
    raw = np.array([FORMULAS[name](row, numbers(module)) for row in rows.double().numpy()])
    module.get_parameter("out").data = torch.eye(raw.shape[1])
    found = module(rows).detach().double().numpy()
    varies = raw.std(0) > 1e-6
    assert np.abs(found.mean(0)).max() < 1e-4
    assert np.abs(found.std(0)[varies] / min(3.0, 3 * (16 / raw.shape[1]) ** 0.5) - 1).max() < 1e-3
    assert (found[:, ~varies] == 0).all()


def numbers(module: nn.Module) -> dict[str, Array]:
    return {name: parameter.detach().double().numpy() for name, parameter in module.named_parameters()}


@WIDTHS
def test_edges_knots_centres_and_width_are_those_numpy_finds(columns: int) -> None:
    rows = table(columns)
    known = {name: numbers(module_of(KINDS[name], rows)) for name in FIXED}
    values, ordered = rows.double().numpy(), np.sort(rows.double().numpy(), axis=0)
    # The value at rank n·k/12, and at rank n·(k + ½)/24: both occur in the column.
    assert np.array_equal(known["bins"]["edges"], ordered[[ROWS * k // 12 for k in range(1, 12)]])
    assert np.array_equal(known["quantile"]["knots"], ordered[[int((k + 0.5) * ROWS / 24) for k in range(24)]])
    assert np.array_equal(known["rbf"]["centres"], values[:48])
    distances = [((a - b) ** 2).sum() for a in values[:48] for b in values[:48]]
    assert known["rbf"]["width"][0] == pytest.approx(np.mean(distances), rel=1e-5)


def test_fewer_rows_than_centres_come_round_again() -> None:
    rows = table(5, 20)
    centres = module_of(KINDS["rbf"], rows).get_parameter("centres")
    assert torch.equal(centres, torch.cat((rows, rows, rows[:8])))


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


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "width"), [(12, 32), (5, 8), (30, 32)])
def test_counts_are_the_formulas(columns: int, width: int) -> None:
    """What is fitted does not count; FLOPs are two for each multiply-add of a product of matrices."""
    d, w, hidden = columns, width, columns * width
    pair = d * (d - 1) // 2
    params = {
        "mlp": hidden + w + w * w, "equality": pair * w, "periodic": 2 * d + 4 * d * w,
        "gated": 2 * (hidden + w) + w * w, "rbf": 48 * w, "gate": d + hidden + w + w * w, "bins": 12 * d * w,
        "quantile": d * w, "sort": d * w, "compare": pair * w, "norm": d * w,
    }  # fmt: skip
    assert {item.name: item.params((d, w)) for item in KINDS.values()} == params
    work = params | {"mlp": hidden + w * w, "periodic": 4 * d * w, "gated": 2 * hidden + w * w, "gate": hidden + w * w}
    # Distances of a row to 48 centres. What a fixed seed multiplies its matrix by is once a batch.
    work |= {"rbf": 48 * w + 48 * d}
    assert {item.name: item.flops((d, w)) for item in KINDS.values()} == {name: 2 * n for name, n in work.items()}


def test_a_host_is_a_plain_mlp_with_one_slot() -> None:
    host = build_host(Host(family="tables", preset="baseline"), (1, 1, 12), 5)
    assert (host.slots, host.slot_shapes, host.seed_shapes) == (1, ((32,),), ((12, 32),))
    assert host.params == 12 * 32 + 32 + 32 * 32 + 32 + 32 * 5 + 5
    assert host.flops_per_sample == 2 * (12 * 32 + 32 * 32 + 32 * 5)
    (segment,), head = host.modules()
    x = torch.randn(7, 1, 1, 12)
    first, second, last = (
        module for module in nn.ModuleList([segment, head]).modules() if isinstance(module, nn.Linear)
    )
    assert torch.equal(segment(x), first(x.flatten(1)))  # the slot is before the first ReLU
    assert torch.equal(head(segment(x)), last(second(first(x.flatten(1)).relu()).relu()))


def test_a_gate_is_pulled_towards_zero_and_never_below() -> None:
    """Where the loss does not depend on a column the pull, 0.002, is its gradient; where the gate is shut, none."""
    module = module_of(KINDS["gate"], table(5))
    gate, hidden = module.get_parameter("gate"), module.get_parameter("hidden.weight")
    gate.data = torch.tensor([1.0, 0.5, 0.2, -0.1, 0.3])
    hidden.data[:, :2] = 0.0
    module(table(5)).square().mean().backward()
    assert gate.grad is not None and gate.grad[:2].tolist() == pytest.approx([0.002, 0.002])
    assert gate.grad[3] == 0 and (gate.grad[[2, 4]] != 0.002).all()
