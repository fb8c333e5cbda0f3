"""Modules of hosts and seeds in float64: names, shapes and first values of parameters, and plain functions of them.

Names are those of an exported network.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.reference import streams

Shape = tuple[int, ...]
Values = Mapping[str, Tensor]
EPS = 1e-5  # of the norms


@dataclass(frozen=True)
class Entry:
    """Describe a parameter: drawn uniformly from ±1/√inputs, or ``constant``; ``fitted``: from data, not trained.
    ``places``: at how many places of a sample (pixels of an image) each of its numbers is multiplied with something.
    """

    name: str
    shape: Shape
    inputs: int = 0
    constant: float | None = None
    fitted: bool = False
    places: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Part:
    """Describe a module: parameters in order, ``run`` on ``[B, …]``.

    ``closing`` parameters start at zero under the operator MULTIPLY, so that the module begins as the identity.
    ``fit`` returns the fitted ones from rows ``[n, D]``. With ``reads_sample`` the module runs on the samples, and its
    output is added to the features.
    """

    entries: tuple[Entry, ...]
    run: Callable[[Values, Tensor], Tensor]
    closing: tuple[str, ...] = ()
    fit: Callable[[Tensor], dict[str, Tensor]] | None = None
    reads_sample: bool = False

    @property
    def params(self) -> int:
        return sum(entry.size for entry in self.entries if not entry.fitted)

    @property
    def flops(self) -> int:
        """Count the FLOPs of one sample: those of matrix products and convolutions."""
        return sum(2 * entry.places * entry.size for entry in self.entries)

    @property
    def fitted(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.entries if entry.fitted)

    def draw(self, stream: streams.Words) -> dict[str, Tensor]:
        """Return first values from a stream; a constant uses up as many numbers as it has."""
        sizes = [entry.size for entry in self.entries]
        values = {}
        numbers = torch.from_numpy(streams.uniforms(stream, sum(sizes)))
        for entry, own in zip(self.entries, numbers.split(sizes), strict=True):
            if entry.constant is None:
                value = (2.0 * own - 1.0) / math.sqrt(entry.inputs)
            else:
                value = torch.full_like(own, entry.constant)
            values[entry.name] = value.reshape(entry.shape)
        return values


def conv(
    name: str, inputs: int, outputs: int, kernel: int, pixels: int, constant: float | None = None
) -> Entry:
    """Describe the weight of a convolution without bias."""
    return Entry(
        f"{name}.weight",
        (outputs, inputs, kernel, kernel),
        inputs * kernel**2,
        constant,
        places=pixels,
    )


def affine(name: str, width: int) -> tuple[Entry, Entry]:
    return Entry(f"{name}.weight", (width,), constant=1.0), Entry(
        f"{name}.bias", (width,), constant=0.0
    )


def dense(
    name: str, inputs: int, outputs: int, zero: bool = False, bias: bool = True
) -> tuple[Entry, ...]:
    """Describe weight and bias of a linear layer; ``zero``: both start at 0."""
    constant = 0.0 if zero else None
    lead = f"{name}." if name else ""
    weight = Entry(f"{lead}weight", (outputs, inputs), inputs, constant, places=1)
    return (weight, Entry(f"{lead}bias", (outputs,), inputs, constant)) if bias else (weight,)


def normed(v: Values, name: str, x: Tensor) -> Tensor:
    """Apply group norm to maps ``[B, C, H, W]``, layer norm to vectors ``[B, D]``."""
    scale = v[f"{name}.weight"]
    shift = v[f"{name}.bias"]
    if x.dim() == 2:
        return F.layer_norm(x, x.shape[1:], scale, shift, EPS)
    channels = x.shape[1]  # in as many groups as may be, of at least 16
    groups = next((n for n in (32, 16, 8, 4, 2) if channels % n == 0 and channels // n >= 16), 1)
    return F.group_norm(x, groups, scale, shift, EPS)


def convolved(v: Values, name: str, x: Tensor, per_channel: bool = False) -> Tensor:
    """Apply a convolution that keeps the size of its maps."""
    weight = v[f"{name}.weight"]
    return F.conv2d(
        x, weight, padding=weight.shape[-1] // 2, groups=x.shape[1] if per_channel else 1
    )


def linear(v: Values, name: str, x: Tensor) -> Tensor:
    return F.linear(x, v[f"{name}.weight"], v.get(f"{name}.bias"))


def rectified(x: Tensor) -> Tensor:
    """Return max(x, 0) with gradient 1 at 0, as the branches of seeds that begin at 0 need."""
    return x.clamp(min=0)


def norm(shape: Shape) -> Part:
    """Build x + tanh(w) (norm(x) − x), w = 0."""
    entries = (Entry("weight", (1,), constant=0.0), *affine("norm", shape[0]))
    return Part(
        entries, lambda v, x: x + torch.tanh(v["weight"]) * (normed(v, "norm", x) - x), ("weight",)
    )


def squeeze_excitation(shape: Shape) -> Part:
    """Build x · σ(W₂ relu(W₁ mean x) + b), W₂ = 0, b = 3."""
    channels = shape[0]
    reduced = max(1, shape[0] // 4)

    def run(v: Values, x: Tensor) -> Tensor:
        scale = linear(v, "excite", F.relu(linear(v, "squeeze", x.mean((2, 3)))))
        return x * torch.sigmoid(scale)[:, :, None, None]

    weight = Entry("excite.weight", (channels, reduced), constant=0.0, places=1)
    bias = Entry("excite.bias", (channels,), constant=3.0)  # σ(3) ≈ 0.95
    return Part((*dense("squeeze", channels, reduced, bias=False), weight, bias), run)


def depthwise(shape: Shape) -> Part:
    """Build x + relu(GN(1×1(3×3 per channel x)))."""
    channels = shape[0]
    pixels = math.prod(shape[1:])

    def run(v: Values, x: Tensor) -> Tensor:
        mixed = convolved(v, "pointwise", convolved(v, "depthwise", x, per_channel=True))
        return x + rectified(normed(v, "norm", mixed))

    kernels = (
        conv("depthwise", 1, channels, 3, pixels),
        conv("pointwise", channels, channels, 1, pixels),
    )
    return Part((*kernels, *affine("norm", channels)), run, ("norm.weight", "norm.bias"))


def bottleneck(shape: Shape) -> Part:
    """Build x + GN(up(relu(3×3(relu(down x))))), up = 0."""
    channels = shape[0]
    pixels = math.prod(shape[1:])
    narrow = max(8, channels // 4)

    def run(v: Values, x: Tensor) -> Tensor:
        inner = F.relu(convolved(v, "conv", F.relu(convolved(v, "down", x))))
        return x + normed(v, "norm", convolved(v, "up", inner))

    entries = (
        conv("down", channels, narrow, 1, pixels),
        conv("conv", narrow, narrow, 3, pixels),
        conv("up", narrow, channels, 1, pixels, 0.0),
        *affine("norm", channels),
    )
    return Part(entries, run, ("up.weight",))


def convolutions(shape: Shape, names: tuple[str, ...], kernel: int, zero: bool = False) -> Part:
    """Build x + relu(GN(conv ·)), once for each name; ``zero``: the convolutions start at 0."""
    channels = shape[0]
    pixels = math.prod(shape[1:])

    def run(v: Values, x: Tensor) -> Tensor:
        h = x
        for name in names:
            h = rectified(normed(v, f"{name}.norm", convolved(v, f"{name}.conv", h)))
        return x + h

    entries = list[Entry]()
    for name in names:
        weight = conv(f"{name}.conv", channels, channels, kernel, pixels, 0.0 if zero else None)
        entries += [weight, *affine(f"{name}.norm", channels)]
    closing = ("conv.weight",) if zero else ("norm.weight", "norm.bias")
    return Part(tuple(entries), run, tuple(f"{names[-1]}.{name}" for name in closing))


def low_rank(shape: Shape) -> Part:
    """Build x + up(down x) of rank 8, up = 0."""
    width = shape[0]
    rank = 8
    entries = (
        *dense("down", width, rank, bias=False),
        *dense("up", rank, width, zero=True, bias=False),
    )
    return Part(entries, lambda v, x: x + linear(v, "up", linear(v, "down", x)), ("up.weight",))


def residual_mlp(shape: Shape, factor: int) -> Part:
    """Build x + W₂ gelu(W₁ x) with a hidden layer ``factor`` times as wide, W₂ = 0."""
    width = shape[0]
    hidden = factor * shape[0]
    entries = (*dense("first", width, hidden), *dense("second", hidden, width, zero=True))
    closing = ("second.weight", "second.bias")
    return Part(
        entries, lambda v, x: x + linear(v, "second", F.gelu(linear(v, "first", x))), closing
    )


def gate(shape: Shape) -> Part:
    """Build σ(W₂ relu(W₁ mean x)): one amplitude for each sample."""
    hidden = max(8, shape[0] // 4)

    def run(v: Values, x: Tensor) -> Tensor:
        pooled = x.mean((2, 3)) if x.dim() == 4 else x
        return torch.sigmoid(linear(v, "out", F.relu(linear(v, "hidden", pooled))))

    return Part((*dense("hidden", shape[0], hidden), *dense("out", hidden, 1)), run)


# --- tables: a seed's shape is (columns, width) ---------------------------------------------------------------------

FITTED_ROWS = 512
MOST_WEIGHT = 16
GAIN = 3.0
LEAST = 1e-6  # of a standard deviation, a squared width and a length
FAINTEST = -20.0  # exponent
CENTRES = 48
BINS = 12
KNOTS = 24
PULL = 0.002  # on the scales of columns, in units of the loss

Fit = Callable[[Tensor], dict[str, Tensor]]
Features = Callable[[Values, Tensor], Tensor]


def learned(shape: Shape, entries: tuple[Entry, ...], count: int, features: Features) -> Part:
    """Build B times ``count`` features of a row."""

    def run(v: Values, x: Tensor) -> Tensor:
        return GAIN * (features(v, x.flatten(1)) @ v["out"])

    out = Entry("out", (count, shape[1]), constant=0.0, places=1)
    return Part((out, *entries), run, ("out",), reads_sample=True)


def units(shape: Shape) -> Part:
    """Build B relu(W x + b)."""
    columns, width = shape
    return learned(
        shape, dense("hidden", columns, width), width, lambda v, x: F.relu(linear(v, "hidden", x))
    )


def periodic(shape: Shape) -> Part:
    """Build sin and cos of every column at two frequencies, which start log-uniform in 4 e^±0.75."""
    columns = shape[0]

    def features(v: Values, x: Tensor) -> Tensor:
        frequencies = 4.0 * torch.exp(0.75 * math.sqrt(columns) * v["log_frequency"])
        angles = torch.cat([x * own for own in frequencies], dim=1)
        return torch.cat((torch.sin(angles), torch.cos(angles)), dim=1)

    return learned(shape, (Entry("log_frequency", (2, columns), columns),), 4 * columns, features)


def gated(shape: Shape) -> Part:
    """Build B ((W x + b) ⊙ (V x + c))."""
    columns, width = shape

    def features(v: Values, x: Tensor) -> Tensor:
        both = linear(v, "hidden", x)
        return both[:, :width] * both[:, width:]

    return learned(shape, dense("hidden", columns, 2 * width), width, features)


def column_gate(shape: Shape) -> Part:
    """Build relu(W (max(g, 0) ⊙ x) + b); positive scales g, which start at 1, are pulled towards 0."""
    columns, width = shape

    def features(v: Values, x: Tensor) -> Tensor:
        scales = F.relu(v["gate"])
        if scales.requires_grad:
            scales.register_hook(lambda slope: slope + PULL)
        return F.relu(linear(v, "hidden", x * scales))

    entries = (Entry("gate", (columns,), constant=1.0), *dense("hidden", columns, width))
    return learned(shape, entries, width, features)


def fixed(
    shape: Shape,
    count: int,
    features: Features,
    prepared: tuple[Entry, ...] = (),
    prepare: Fit | None = None,
) -> Part:
    """Build B times ``count`` untrained features, standardised; fitted are what ``prepare`` returns, mean and scale."""
    weight = GAIN * min(1.0, math.sqrt(MOST_WEIGHT / count))

    def run(v: Values, x: Tensor) -> Tensor:
        return ((features(v, x.flatten(1)) - v["mean"]) * v["scale"]) @ v["out"]

    def fit(rows: Tensor) -> dict[str, Tensor]:
        found = {} if prepare is None else prepare(rows)
        raw = features(found, rows)
        mean = raw.mean(dim=0)
        deviation = torch.sqrt(((raw - mean) ** 2).mean(dim=0))
        # What does not vary stays 0.
        return found | {
            "mean": mean,
            "scale": torch.where(deviation > LEAST, weight / deviation, 0.0),
        }

    out = Entry("out", (count, shape[1]), constant=0.0, places=1)
    entries = (out, fitted_entry("mean", count), fitted_entry("scale", count), *prepared)
    return Part(entries, run, ("out",), fit, reads_sample=True)


def fitted_entry(name: str, *shape: int, places: int = 0) -> Entry:
    return Entry(name, shape, constant=0.0, fitted=True, places=places)


def of_pairs(shape: Shape, of_difference: Callable[[Tensor], Tensor]) -> Part:
    """Build a function of the difference xᵢ − xⱼ of every pair of columns."""
    first, second = torch.combinations(torch.arange(shape[0])).T
    return fixed(shape, len(first), lambda v, x: of_difference(x[:, first] - x[:, second]))


def radial(shape: Shape) -> Part:
    """Build exp(−‖x − c‖² / s²) around the first rows c, s² their mean squared distance; at least e^−20."""

    def features(v: Values, x: Tensor) -> Tensor:
        apart = ((x[:, None] - v["centres"]) ** 2).sum(dim=2)
        return torch.exp(torch.clamp(-apart / v["width"], min=FAINTEST))

    def prepare(rows: Tensor) -> dict[str, Tensor]:
        centres = rows[torch.arange(CENTRES) % len(rows)]
        apart = ((centres[:, None] - centres) ** 2).sum(dim=2)
        return {"centres": centres, "width": apart.mean().clamp(min=LEAST).reshape(1)}

    prepared = fitted_entry("centres", CENTRES, shape[0], places=1), fitted_entry("width", 1)
    return fixed(shape, CENTRES, features, prepared, prepare)


def bins(shape: Shape) -> Part:
    """Build a one-hot code of the quantile bin, of 12, of each column: column after column, all bins."""

    def features(v: Values, x: Tensor) -> Tensor:
        number = (x[:, None] >= v["edges"]).sum(dim=1)
        return F.one_hot(number, BINS).to(x.dtype).flatten(1)

    def prepare(rows: Tensor) -> dict[str, Tensor]:
        return {"edges": rows.sort(dim=0).values[[k * len(rows) // BINS for k in range(1, BINS)]]}

    return fixed(
        shape, BINS * shape[0], features, (fitted_entry("edges", BINS - 1, shape[0]),), prepare
    )


def normal_scores(shape: Shape) -> Part:
    """Build Φ⁻¹ of the share of 24 quantiles that lie at or below a value, a half added."""

    def features(v: Values, x: Tensor) -> Tensor:
        below = (x[:, None] >= v["knots"]).sum(dim=1).to(x.dtype)
        return torch.special.ndtri((below + 0.5) / (KNOTS + 1))

    def prepare(rows: Tensor) -> dict[str, Tensor]:
        ranks = [(2 * k + 1) * len(rows) // (2 * KNOTS) for k in range(KNOTS)]
        return {"knots": rows.sort(dim=0).values[ranks]}

    return fixed(shape, shape[0], features, (fitted_entry("knots", KNOTS, shape[0]),), prepare)


# Blueprints of each family in the order of the actions, built for the features' shape; of tables for (columns, width).
BLUEPRINTS: dict[str, dict[str, Callable[[Shape], Part]]] = {
    "cnn": {
        "norm": norm,
        "attention": squeeze_excitation,
        "depthwise": depthwise,
        "bottleneck": bottleneck,
        "conv_small": lambda shape: convolutions(shape, ("branch",), 1, zero=True),
        "conv_light": lambda shape: convolutions(shape, ("branch",), 3),
        "conv_heavy": lambda shape: convolutions(shape, ("first", "second"), 3),
    },
    "mlp": {
        "norm": norm,
        "lora": low_rank,
        "mlp_small": lambda shape: residual_mlp(shape, 2),
        "mlp": lambda shape: residual_mlp(shape, 4),
    },
    "tables": {
        "mlp": units,
        "equality": lambda shape: of_pairs(
            shape, lambda d: torch.exp(torch.clamp(-40.0 * d**2, min=FAINTEST))
        ),
        "periodic": periodic,
        "gated": gated,
        "rbf": radial,
        "gate": column_gate,
        "bins": bins,
        "quantile": normal_scores,
        "sort": lambda shape: fixed(shape, shape[0], lambda v, x: x.sort(dim=1).values),
        "compare": lambda shape: of_pairs(shape, lambda d: torch.tanh(3.0 * d)),
        "norm": lambda shape: fixed(
            shape,
            shape[0],
            lambda v, x: x / torch.sqrt((x**2).sum(dim=1, keepdim=True)).clamp(min=LEAST),
        ),
    },
}


# --- alignment of untrained seeds with the labels of a task ---

ALIGNED_ROWS = 1024  # the first of the training split, in two halves


def alignments(parts: Sequence[Part], x: Tensor, y: Tensor) -> list[float]:
    """Return the agreement of B's gradients on two halves of the rows, with the labels as the error, for each seed;
    scaled so that the largest is ±1. All 0 where seeds do not read the sample.
    """
    if not all(part.reads_sample for part in parts):
        return [0.0] * len(parts)
    agreements = [
        _agreement(part, kind, x[:ALIGNED_ROWS], y[:ALIGNED_ROWS])
        for kind, part in enumerate(parts)
    ]
    largest = max(abs(value) for value in agreements)
    return [value / largest if largest else 0.0 for value in agreements]


def _agreement(part: Part, kind: int, x: Tensor, y: Tensor) -> float:
    values = part.draw(streams.key(0, streams.ALIGNMENT, kind))
    if part.fit is not None:
        values |= part.fit(x[:FITTED_ROWS].flatten(1))
    for name in part.closing:
        values[name].requires_grad_()
    middle = (len(y) + 1) // 2
    first, second = (
        _slopes(part, values, x[rows], y[rows]) for rows in (slice(middle), slice(middle, None))
    )
    return float(first @ second)


def _slopes(part: Part, values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the mean of output times label (class c at hidden unit c) less the mean label."""
    out = part.run(values, x)
    label = F.one_hot(y % out.shape[1], out.shape[1]).to(out.dtype)
    agreement = (out * (label - label.mean(dim=0))).sum() / len(y)
    slopes = torch.autograd.grad(agreement, [values[name] for name in part.closing])
    return torch.cat([slope.flatten() for slope in slopes])
