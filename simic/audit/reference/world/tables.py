"""Tables a second time: the host, and eleven seeds that read the row, ``[B, D]``; one network at a time.

A seed is 3 φ(row) · B. What of φ is fitted is fitted to the first rows of a task; the features of such a seed are
centred and scaled, so that all together weigh no more than 16 before they are tripled.
"""

import math
from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F

from simic.audit.reference.world.parts import Entry, Part, Values, dense, linear

FITTED_ROWS = 512
WIDTHS = (32, 32)
MOST_WEIGHT, GAIN = 16, 3.0
LEAST = 1e-6  # of a standard deviation, a squared width and a length
FAINTEST = -20.0  # exponent
CENTRES, BINS, KNOTS = 48, 12, 24
PULL = 0.002  # on the scales of columns, in units of the loss

Shape = tuple[int, ...]
Fit = Callable[[Tensor], dict[str, Tensor]]
Features = Callable[[Values, Tensor], Tensor]


def host(shape: Shape, classes: int, widths: Shape) -> tuple[list[Part], Part, list[Shape]]:
    """Linear, then ReLU, linear, ReLU, linear; a seed is added to what the first of them gives."""
    inputs, (first, second) = math.prod(shape), widths

    def segment(v: Values, x: Tensor) -> Tensor:
        return linear(v, "linear", x.flatten(1))

    def head(v: Values, h: Tensor) -> Tensor:
        return linear(v, "3", F.relu(linear(v, "1", F.relu(h))))

    last = Part((*dense("1", first, second), *dense("3", second, classes)), head, 2 * second * (first + classes))
    return [Part(dense("linear", inputs, first), segment, 2 * inputs * first)], last, [(first,)]


# --- seeds that learn their features ---


def _learned(shape: Shape, entries: tuple[Entry, ...], count: int, flops: int, features: Features) -> Part:
    """``count`` features of a row, and B."""

    def run(v: Values, x: Tensor) -> Tensor:
        return GAIN * (features(v, x.flatten(1)) @ v["out"])

    out = Entry("out", (count, shape[1]), constant=0.0)
    return Part((out, *entries), run, flops + 2 * count * shape[1], ("out",), reads_sample=True)


def units(shape: Shape) -> Part:
    """relu(W x + b)."""
    columns, width = shape
    features = lambda v, x: F.relu(linear(v, "hidden", x))  # noqa: E731
    return _learned(shape, dense("hidden", columns, width), width, 2 * columns * width, features)


def periodic(shape: Shape) -> Part:
    """sin and cos of every column at two frequencies, which start log-uniform in 4 e^±0.75."""
    columns = shape[0]

    def features(v: Values, x: Tensor) -> Tensor:
        frequencies = 4.0 * torch.exp(0.75 * math.sqrt(columns) * v["log_frequency"])
        angles = torch.cat([x * own for own in frequencies], dim=1)
        return torch.cat((torch.sin(angles), torch.cos(angles)), dim=1)

    return _learned(shape, (Entry("log_frequency", (2, columns), columns),), 4 * columns, 0, features)


def gated(shape: Shape) -> Part:
    """(W x + b) ⊙ (V x + c)."""
    columns, width = shape

    def features(v: Values, x: Tensor) -> Tensor:
        both = linear(v, "hidden", x)
        return both[:, :width] * both[:, width:]

    return _learned(shape, dense("hidden", columns, 2 * width), width, 4 * columns * width, features)


def column_gate(shape: Shape) -> Part:
    """relu(W (max(g, 0) ⊙ x) + b); the positive of the scales g, which start at 1, are pulled towards 0."""
    columns, width = shape

    def features(v: Values, x: Tensor) -> Tensor:
        scales = F.relu(v["gate"])
        if scales.requires_grad:
            scales.register_hook(lambda slope: slope + PULL)
        return F.relu(linear(v, "hidden", x * scales))

    entries = (Entry("gate", (columns,), constant=1.0), *dense("hidden", columns, width))
    return _learned(shape, entries, width, 2 * columns * width, features)


# --- seeds with fixed features ---


def _fixed(
    shape: Shape, count: int, features: Features, entries: tuple[Entry, ...] = (), prepare: Fit | None = None,
    flops: int = 0,
) -> Part:  # fmt: skip
    """``count`` features that do not train, B, and what is fitted: what ``prepare`` gives, then mean and scale."""
    weight = GAIN * min(1.0, math.sqrt(MOST_WEIGHT / count))

    def run(v: Values, x: Tensor) -> Tensor:
        return ((features(v, x.flatten(1)) - v["mean"]) * v["scale"]) @ v["out"]

    def fit(rows: Tensor) -> dict[str, Tensor]:
        found = {} if prepare is None else prepare(rows)
        raw = features(found, rows)
        mean = raw.mean(dim=0)
        deviation = torch.sqrt(((raw - mean) ** 2).mean(dim=0))
        # What does not vary stays 0.
        scale = [weight / float(own) if own > LEAST else 0.0 for own in deviation]
        return found | {"mean": mean, "scale": torch.tensor(scale, dtype=rows.dtype)}

    own = (
        Entry("out", (count, shape[1]), constant=0.0),
        Entry("mean", (count,), constant=0.0, fitted=True),
        Entry("scale", (count,), constant=0.0, fitted=True),
    )
    return Part((*own, *entries), run, flops + 2 * count * shape[1], ("out",), fit, reads_sample=True)


def _pairs(shape: Shape, of_difference: Callable[[Tensor], Tensor]) -> Part:
    pairs = list(combinations(range(shape[0]), 2))

    def features(v: Values, x: Tensor) -> Tensor:
        return torch.stack([of_difference(x[:, i] - x[:, j]) for i, j in pairs], dim=1)

    return _fixed(shape, len(pairs), features)


def equality(shape: Shape) -> Part:
    """exp(−40 (xᵢ − xⱼ)²) of every pair of columns, at least e^−20."""
    return _pairs(shape, lambda apart: torch.exp(torch.clamp(-40.0 * apart**2, min=FAINTEST)))


def comparison(shape: Shape) -> Part:
    """tanh(3 (xᵢ − xⱼ)) of every pair of columns."""
    return _pairs(shape, lambda apart: torch.tanh(3.0 * apart))


def radial(shape: Shape) -> Part:
    """exp(−‖x − c‖² / s²) around the first rows c, s² the mean squared distance of any two of them; at least e^−20."""

    def features(v: Values, x: Tensor) -> Tensor:
        apart = ((x[:, None] - v["centres"]) ** 2).sum(dim=2)
        return torch.exp(torch.clamp(-apart / v["width"], min=FAINTEST))

    def prepare(rows: Tensor) -> dict[str, Tensor]:
        centres = rows[torch.arange(CENTRES) % len(rows)]
        apart = ((centres[:, None] - centres) ** 2).sum(dim=2)
        return {"centres": centres, "width": apart.mean().clamp(min=LEAST).reshape(1)}

    entries = (
        Entry("centres", (CENTRES, shape[0]), constant=0.0, fitted=True),
        Entry("width", (1,), constant=0.0, fitted=True),
    )
    return _fixed(shape, CENTRES, features, entries, prepare, 2 * CENTRES * shape[0])


def _at_ranks(rows: Tensor, ranks: list[int]) -> Tensor:
    """The values of each column at these places of its order, ``[ranks, D]``."""
    return rows.sort(dim=0).values[ranks]


def bins(shape: Shape) -> Part:
    """In which of 12 quantile bins each column lies: bin after bin, all columns."""

    def features(v: Values, x: Tensor) -> Tensor:
        number = (x[:, None] >= v["edges"]).sum(dim=1)
        return F.one_hot(number, BINS).to(x.dtype).transpose(1, 2).flatten(1)

    def prepare(rows: Tensor) -> dict[str, Tensor]:
        return {"edges": _at_ranks(rows, [k * len(rows) // BINS for k in range(1, BINS)])}

    edges = Entry("edges", (BINS - 1, shape[0]), constant=0.0, fitted=True)
    return _fixed(shape, BINS * shape[0], features, (edges,), prepare)


def normal_scores(shape: Shape) -> Part:
    """Φ⁻¹ of the share of 24 quantiles that lie at or below a value, a half added."""

    def features(v: Values, x: Tensor) -> Tensor:
        below = (x[:, None] >= v["knots"]).sum(dim=1).to(x.dtype)
        return torch.special.ndtri((below + 0.5) / (KNOTS + 1))

    def prepare(rows: Tensor) -> dict[str, Tensor]:
        return {"knots": _at_ranks(rows, [(2 * k + 1) * len(rows) // (2 * KNOTS) for k in range(KNOTS)])}

    knots = Entry("knots", (KNOTS, shape[0]), constant=0.0, fitted=True)
    return _fixed(shape, shape[0], features, (knots,), prepare)


def ordered(shape: Shape) -> Part:
    """The row in ascending order."""
    return _fixed(shape, shape[0], lambda v, x: x.sort(dim=1).values)


def direction(shape: Shape) -> Part:
    """The row over its length."""
    return _fixed(shape, shape[0], lambda v, x: x / torch.sqrt((x**2).sum(dim=1, keepdim=True)).clamp(min=LEAST))


SEEDS: dict[str, Callable[[Shape], Part]] = {
    "mlp": units,
    "equality": equality,
    "periodic": periodic,
    "gated": gated,
    "rbf": radial,
    "gate": column_gate,
    "bins": bins,
    "quantile": normal_scores,
    "sort": ordered,
    "compare": comparison,
    "norm": direction,
}
