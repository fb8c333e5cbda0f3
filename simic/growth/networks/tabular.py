"""Hosts for tables: a plain MLP, and seeds that read the standardised row and add to its first pre-activation.

A seed is 3 φ(row) · B with B = 0 at germination, so that germinating changes nothing; by the 3 it shows within an epoch
or two what it is worth (docs/history/experiments.md). What a map φ takes from data
(quantiles, centres, the scale of its features) is fitted once, at germination, to the first rows of the host's training
split, and never trained. Fixed features are centred, divided by their standard deviation and weighted by
min(1, √(16 / width)), so that many features do not learn faster than few.

Modules here work for one network, ``x [B, …]`` with parameters as they are declared, and for R networks at once,
``x [R · B, …]`` with parameters ``[R, …]`` (``layers.Samplewise``).
"""

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd import Function

from simic.errors import SimicError
from simic.growth.life.vocabulary import Stage
from simic.growth.networks.blueprints import Blueprint, blueprint, blueprints_of
from simic.growth.networks.family import Anatomy, Shape, host_family
from simic.growth.networks.layers import FlatLinear, Samplewise
from simic.params import Host

# Width of both hidden layers.
WIDTH = 32
FEATURES_AT_FULL_WEIGHT = 16
# Factor of all features: steps of AdamW on B are equally long whatever the features are.
GAIN = 3.0
# What is smaller counts as 0.
LEAST_STD = 1e-6
# Not below e^−20: products of denormal numbers take a hundred times as long.
LEAST_EXPONENT = -20.0
# Sharpness of equality: two values 0.13 apart count half.
SHARPNESS = 40.0
# Frequencies of a column, which start at 4 · e^±0.75.
FREQUENCIES = 2
BASE_FREQUENCY = 4.0
SPREAD = 0.75
CENTRES = 48
BINS = 12
KNOTS = 24
# Pull of gates towards 0, in units of the loss; ours, docs/history/experiments.md.
GATE_PULL = 0.002

# Slots of a preset.
PRESETS = {"baseline": 1, "double": 2, "triple": 3}


def _head(first: int, second: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.ReLU(),
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, classes),
    )


# A seed does not read the host's features, so once it acts there is nothing to cut: its host gets the whole gradient.
@host_family(
    "tables",
    presets=tuple(PRESETS),
    isolated=frozenset({Stage.TRAINING}),
    reads_input=True,
)
def tables(host: Host, input_shape: Shape, classes: int) -> Anatomy:
    """Build D → 32 → ReLU → 32 → ReLU → classes; all slots are at the first pre-activation.

    Args:
        host: its params; two widths in place of 32, if any.
        input_shape: ``(1, 1, D)``.
        classes: number of logits.
    """
    # Seeds compare columns with each other.
    if math.prod(input_shape) < 2:
        raise SimicError(
            f"input shape {input_shape}: family tables compares columns: there must be at least two"
        )
    first, second = host.widths or (WIDTH, WIDTH)
    slots = PRESETS[host.preset]
    segments = (partial(FlatLinear, math.prod(input_shape), first), *[nn.Identity] * (slots - 1))
    config = host.model_copy(update={"widths": (first, second)})
    return Anatomy(segments, partial(_head, first, second, classes), ((first,),) * slots, config)


# --- seeds: shape = (values of a row, width of the first hidden layer) ------------------------------------------------


class RowSeed(Samplewise):
    """gain · φ(row) · B; a subclass says what φ is."""

    reads_input = True
    gain = GAIN

    def __init__(self, shape: Shape, features: int) -> None:
        super().__init__()
        self.out = nn.Parameter(torch.zeros(features, shape[1]))

    def many(self, parameter: Tensor) -> Tensor:
        """View a parameter as one of R networks, ``[R, …]``; of a single one, R = 1."""
        return parameter if self.out.dim() == 3 else parameter[None]

    def forward(self, x: Tensor) -> Tensor:
        # Samples of all networks lie one after the other; group them by network.
        out = self.many(self.out)
        rows = x.flatten(1).unflatten(0, (len(out), -1))
        return torch.bmm(self.features(rows), self.gain * out).flatten(0, 1)

    def features(self, x: Tensor) -> Tensor:
        """Compute φ ``[R, B, F]`` of rows ``[R, B, D]``."""
        raise NotImplementedError

    def dense(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Apply a linear layer of each network to its rows ``[R, B, D]``."""
        return layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class FixedSeed(RowSeed):
    """A seed whose features have nothing to learn: they are centred and scaled by the rows it is fitted to at
    germination, as are the ``constants``, tensors of these shapes that ``prepare`` makes and ``raw`` uses.
    """

    gain = 1.0  # it is in the scale

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: Shape, features: int | None = None, **constants: Shape) -> None:
        # By default one feature for each column.
        features = features or shape[0]
        super().__init__(shape, features)
        self._constants = tuple(constants)
        sizes = {"mean": (features,), "scale": (features,), **constants}
        for name, size in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(size), requires_grad=False))

    def features(self, x: Tensor) -> Tensor:
        constants = {name: self.many(getattr(self, name)) for name in self._constants}
        raw = self.raw(x, constants)
        # In place: two passes less over the largest tensor of an epoch.
        raw -= self.many(self.mean)[:, None]
        raw *= self.many(self.scale)[:, None]
        return raw

    def raw(self, x: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        """Compute features ``[R, B, F]`` of rows ``[R, B, D]`` before they are scaled."""
        raise NotImplementedError

    def fit(self, rows: Tensor) -> dict[str, Tensor]:
        """Fit the seed to rows ``[R, n, D]`` of R tasks; parameters ``[R, …]`` by name."""
        # First what the features are made of, then their scale.
        fitted = self.prepare(rows)
        raw = self.raw(rows, fitted)
        # Many features together move as fast as sixteen.
        weight = GAIN * min(1.0, math.sqrt(FEATURES_AT_FULL_WEIGHT / raw.shape[-1]))
        mean = raw.mean(dim=1, keepdim=True)
        std = (raw - mean).square().mean(dim=1).sqrt()
        # A feature that does not vary says nothing: it stays 0.
        scale = torch.where(std > LEAST_STD, weight / std.clamp(min=LEAST_STD), 0.0)
        return fitted | {"mean": mean[:, 0], "scale": scale}

    def prepare(self, rows: Tensor) -> dict[str, Tensor]:
        """Derive what ``raw`` needs from rows ``[R, n, D]``."""
        return {}


class _PairSeed(FixedSeed):
    """One feature for each pair of columns i < j: a function of xᵢ − xⱼ."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, shape[0] * (shape[0] - 1) // 2)

    def raw(self, x: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        columns = range(x.shape[-1] - 1)
        return self.of_difference(
            torch.cat([x[..., i, None] - x[..., i + 1 :] for i in columns], -1)
        )

    def of_difference(self, difference: Tensor) -> Tensor:
        raise NotImplementedError


@blueprint("mlp", "tables", closing=("out",))
class HiddenUnits(RowSeed, Samplewise):
    """relu(W x + b) with 32 units."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, shape[1])
        self.hidden = nn.Linear(shape[0], shape[1])

    def features(self, x: Tensor) -> Tensor:
        return self.dense(self.hidden, x).relu()


@blueprint("equality", "tables", closing=("out",))
class Equality(_PairSeed, Samplewise):
    """exp(−40 (xᵢ − xⱼ)²): do two columns hold the same value?"""

    def of_difference(self, difference: Tensor) -> Tensor:
        return difference.square_().mul_(-SHARPNESS).clamp_(min=LEAST_EXPONENT).exp_()


@blueprint("periodic", "tables", closing=("out",))
class Periodic(RowSeed, Samplewise):
    """sin and cos of each column at two learned frequencies, which start around 4."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 2 * FREQUENCIES * shape[0])
        self.log_frequency = nn.Linear(shape[0], FREQUENCIES, bias=False).weight

    def features(self, x: Tensor) -> Tensor:
        # Drawn uniformly in ±1/√D (batch/template.py); times √D · SPREAD it is log-uniform in 4 · e^±SPREAD.
        log_frequency = self.many(self.log_frequency)
        frequency = BASE_FREQUENCY * torch.exp(SPREAD * x.shape[-1] ** 0.5 * log_frequency)
        angle = (x[:, :, None] * frequency[:, None]).flatten(2)
        return torch.cat((angle.sin(), angle.cos()), -1)


@blueprint("gated", "tables", closing=("out",))
class Gated(RowSeed, Samplewise):
    """(W x + b) ⊙ (V x + c) with 32 units: products of columns (bilinear GLU, Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, shape[1])
        self.hidden = nn.Linear(shape[0], 2 * shape[1])

    def features(self, x: Tensor) -> Tensor:
        # Half of the units are values, half of them gates.
        value, gate = self.dense(self.hidden, x).chunk(2, -1)
        return value * gate


@blueprint("rbf", "tables", closing=("out",))
class Radial(FixedSeed, Samplewise):
    """exp(−‖x − c‖² / s²) around 48 rows c; s² is their mean squared distance."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, CENTRES, centres=(CENTRES, shape[0]), width=(1,))

    def raw(self, x: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        centres = fitted["centres"]
        width = fitted["width"]
        # ‖x − c‖² = ‖x‖² + ‖c‖² − 2 x·c, one matrix product for all centres; over −s² it is the exponent.
        factor = -1.0 / width[:, None]
        exponent = torch.matmul(x, centres.mT * (-2.0 * factor))
        exponent += x.square().sum(-1, keepdim=True) * factor
        exponent += centres.square().sum(-1)[:, None] * factor
        return exponent.clamp_(LEAST_EXPONENT, 0.0).exp_()

    def prepare(self, rows: Tensor) -> dict[str, Tensor]:
        # Where there are fewer rows than centres, they come round again.
        chosen = torch.arange(CENTRES, device=rows.device) % rows.shape[1]
        centres = rows[:, chosen]
        # The mean over all ordered pairs is twice the variance.
        spread = 2 * centres.var(dim=1, correction=0).sum(-1, keepdim=True)
        return {"centres": centres, "width": spread.clamp(min=LEAST_STD)}


class _Pull(Function):
    """The identity; its gradient has a constant added that pulls towards 0."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0] + GATE_PULL


@blueprint("gate", "tables", closing=("out",))
class ColumnGate(RowSeed, Samplewise):
    """relu(W (g ⊙ x) + b) with a learned scale g ≥ 0 for each column that is pulled towards 0: few columns matter."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, shape[1])
        self.gate = nn.Parameter(torch.ones(shape[0]))
        self.hidden = nn.Linear(shape[0], shape[1])

    def features(self, x: Tensor) -> Tensor:
        # A scale below 0 counts as 0: the column is left out.
        gate: Tensor = _Pull.apply(self.many(self.gate).relu())
        return self.dense(self.hidden, x * gate[:, None]).relu()


@blueprint("bins", "tables", closing=("out",))
class Bins(FixedSeed, Samplewise):
    """Which of 12 quantile bins each column lies in, one-hot."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, BINS * shape[0], edges=(BINS - 1, shape[0]))

    def raw(self, x: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        # Rows of the identity: they are copied, where a comparison would be made bin by bin.
        one_hot = torch.eye(BINS, dtype=x.dtype, device=x.device)
        bins = _rank(x, fitted["edges"]).flatten().int()
        return one_hot.index_select(0, bins).view(*x.shape[:-1], -1)

    def prepare(self, rows: Tensor) -> dict[str, Tensor]:
        ranks = torch.arange(1, BINS, device=rows.device) * rows.shape[1] // BINS
        ordered = rows.sort(dim=1).values
        return {"edges": ordered[:, ranks]}


@blueprint("quantile", "tables", closing=("out",))
class NormalScores(FixedSeed, Samplewise):
    """Normal scores: Φ⁻¹ of each value's rank among 24 quantiles of its column."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, knots=(KNOTS, shape[0]))

    def raw(self, x: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        # Half a rank more, as Φ⁻¹ is infinite at 0 and 1.
        rank = _rank(x, fitted["knots"]).contiguous().add_(0.5)
        # Φ⁻¹(p) = √2 erf⁻¹(2p − 1), p = rank / (knots + 1).
        doubled = rank.mul_(2 / (KNOTS + 1))
        return doubled.sub_(1.0).erfinv_().mul_(math.sqrt(2.0))

    def prepare(self, rows: Tensor) -> dict[str, Tensor]:
        middles = torch.arange(KNOTS, device=rows.device) + 0.5
        ranks = (middles * rows.shape[1] / KNOTS).long()
        ordered = rows.sort(dim=1).values
        return {"knots": ordered[:, ranks]}


def _rank(x: Tensor, bounds: Tensor) -> Tensor:
    """Count the bounds ``[R, n, D]`` that each value of ``x [R, B, D]`` is not below."""
    # Column by column, so that operations run over long rows; into floats, as to add a bool tensor takes longer.
    columns = x.movedim(-1, 0).contiguous()
    by_column = bounds.permute(2, 1, 0)[..., None]  # [D, n, R, 1]
    rank = torch.zeros_like(columns)
    reached = torch.empty_like(columns)
    for number in range(bounds.shape[1]):
        rank += torch.ge(columns, by_column[:, number], out=reached)
    return rank.movedim(0, -1)


@blueprint("sort", "tables", closing=("out",))
class Sorted(FixedSeed, Samplewise):
    """The row's values in ascending order."""

    def raw(self, x: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        # Odd-even transposition: as many rounds as there are columns, each over pairs of neighbours.
        columns = [column.contiguous() for column in x.unbind(-1)]
        for turn in range(len(columns)):
            for i in range(turn % 2, len(columns) - 1, 2):
                low, high = columns[i : i + 2]
                columns[i] = torch.minimum(low, high)
                columns[i + 1] = torch.maximum(low, high)
        return torch.stack(columns, -1)


@blueprint("compare", "tables", closing=("out",))
class Compare(_PairSeed, Samplewise):
    """tanh(3 (xᵢ − xⱼ)): which of two columns is larger."""

    def of_difference(self, difference: Tensor) -> Tensor:
        return difference.mul_(3.0).tanh_()


@blueprint("norm", "tables", closing=("out",))
class Direction(FixedSeed, Samplewise):
    """The row over its length."""

    def raw(self, x: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        length = x.square().sum(-1, keepdim=True).sqrt()
        return x / length.clamp(min=LEAST_STD)


class Together(Samplewise):
    """All seeds of the family at once: what one would take who need not choose. No blueprint: only floors grow it."""

    reads_input = True

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        for item in blueprints_of("tables"):
            self.add_module(item.name, item.build(shape))

    def forward(self, x: Tensor) -> Tensor:
        # Their outputs add up, in the order of registration: a sum depends on its order.
        first, *rest = (seed(x) for seed in self.children())
        for added in rest:
            first = first + added
        return first

    def fit(self, rows: Tensor) -> dict[str, Tensor]:
        """Fit all of them; parameters by name."""
        return {
            f"{name}.{key}": value
            for name, seed in self.named_children()
            if isinstance(seed, FixedSeed)
            for key, value in seed.fit(rows).items()
        }


TOGETHER = Blueprint("everything at once", "tables", Together)
