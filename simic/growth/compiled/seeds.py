"""Seeds of hosts for tables, compiled: features φ of a few rows, and the gradients of what is inside of φ.

Rows stand side by side, ``x [D, B]`` and φ ``[F, B]``, so that loops run over many of them at once.

They are those of ``growth/networks/tabular.py``, which says what each is for; tests hold the two to each other. The
numbers of a seed lie in one row, as in ``Template``: first B ``[F, H]``, then the parameters of φ.
"""

import math
from statistics import NormalDist

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simic.growth.compiled.arithmetic import (
    INNER,
    Array,
    Scalar,
    add_product,
    clear,
    copy,
    exp,
    sin_cos,
    tanh,
    transpose,
)
from simic.growth.networks import tabular

_ZERO = np.float32(0)
_ONE = np.float32(1)
_GATE_PULL = np.float32(tabular.GATE_PULL)
_LEAST_EXPONENT = np.float32(tabular.LEAST_EXPONENT)
_SHARPNESS = np.float32(tabular.SHARPNESS)
_LEAST_STD = np.float32(tabular.LEAST_STD)
_TWO = np.float32(2)
_THREE = np.float32(3)
_GAIN = np.float32(tabular.GAIN)
_BASE_FREQUENCY = np.float32(tabular.BASE_FREQUENCY)
_SPREAD = np.float32(tabular.SPREAD)
_CENTRES = tabular.CENTRES
_BINS = tabular.BINS
_KNOTS = tabular.KNOTS
_SCORES = np.array(
    [NormalDist().inv_cdf((rank + 0.5) / (_KNOTS + 1)) for rank in range(_KNOTS + 1)], np.float32
)

# Numbers of the blueprints: those that learn first, as one comparison then tells them from the others.
KINDS = {
    tabular.HiddenUnits: 0,
    tabular.ColumnGate: 1,
    tabular.Gated: 2,
    tabular.Periodic: 3,
    tabular.Equality: 4,
    tabular.Compare: 5,
    tabular.Radial: 6,
    tabular.Bins: 7,
    tabular.NormalScores: 8,
    tabular.Sorted: 9,
    tabular.Direction: 10,
}
_MLP, _GATE, _GATED, _PERIODIC, _EQUALITY, _COMPARE, _RBF, _BIN, _QUANTILE, _SORT, _NORM = range(11)
FIRST_FIXED = _EQUALITY
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]


@njit(**INNER)
def gain_of(kind: int) -> Scalar:
    """Tell the factor of φ · B; fixed features have theirs in their scale."""
    return _GAIN if kind < FIRST_FIXED else _ONE


@njit(**INNER)
def layer_width(kind: int, units: int) -> int:
    """Tell how many outputs the linear layer of a blueprint has."""
    if kind == _GATED:
        return 2 * units
    return units if kind in (_MLP, _GATE) else 0


@njit(**INNER)
def compute_features(
    kind: int,
    x: Array,
    units: int,
    inner: Array,
    f: Array,
    a: Array,
) -> None:
    """Compute features.

    Args:
        kind: Number of the blueprint.
        x: Rows ``[D, B]``.
        units: Width of the host's first layer, H.
        inner: Numbers of the seed after B.
        f: Is written: features ``[F, B]``.
        a: Is written by linear layers: their outputs ``[A, B]``.
    """
    if kind == _PERIODIC:
        _waves(x, inner, f)
    elif kind < FIRST_FIXED:
        _units(kind, x, units, inner, f, a)
    else:
        # First mean and scale of each feature, then what the blueprint fitted.
        features = f.shape[0]
        _raw_features(kind, x, inner[2 * features :], f)
        for k in range(features):
            mean = inner[k]
            scale = inner[features + k]
            for b in range(f.shape[1]):
                f[k, b] = (f[k, b] - mean) * scale


@njit(**INNER)
def write_inner_gradients(
    kind: int,
    x: Array,
    units: int,
    inner: Array,
    f: Array,
    a: Array,
    of_f: Array,
    grad: Array,
) -> None:
    """Write the gradients of what is inside of φ.

    Args:
        kind: A blueprint that learns.
        x: As of ``compute_features``, like all before ``of_f``.
        units: Width of the host's first layer.
        inner: Numbers of the seed after B.
        f: Features.
        a: As it was written there.
        of_f: Gradient of the features, ``[F, B]``.
        grad: Is written, like ``inner``; it is 0.
    """
    if kind == _PERIODIC:
        _write_wave_gradients(x, inner, f, of_f, grad)
    else:
        _write_unit_gradients(kind, x, units, inner, a, of_f, grad)


@njit(**INNER)
def _layer(
    kind: int,
    columns: int,
    units: int,
    inner: Array,
) -> tuple[Array, Array]:
    """View weight and bias of a linear layer; before them a gate has its scales."""
    outputs = layer_width(kind, units)
    first = columns if kind == _GATE else 0
    last = first + outputs * columns
    return inner[first:last].reshape(outputs, columns), inner[last : last + outputs]


@njit(**INNER)
def _scaled(
    kind: int,
    x: Array,
    inner: Array,
) -> Array:
    """Scale the columns by their gates, if the blueprint has any; a scale below 0 counts as 0, NaN stays."""
    if kind != _GATE:
        return x
    # What was read stays, as other blueprints would read it.
    scaled = np.empty_like(x)
    for d in range(len(x)):
        gate = _ZERO if inner[d] <= _ZERO else inner[d]
        for b in range(x.shape[1]):
            scaled[d, b] = x[d, b] * gate
    return scaled


@njit(**INNER)
def _units(
    kind: int,
    x: Array,
    units: int,
    inner: Array,
    f: Array,
    a: Array,
) -> None:
    # The linear layer.
    weight, bias = _layer(kind, len(x), units, inner)
    for u in range(len(bias)):
        for b in range(x.shape[1]):
            a[u, b] = bias[u]
    add_product(weight, _scaled(kind, x, inner), a)
    # Products of values and gates, or relu.
    for u in range(units):
        if kind == _GATED:
            for b in range(x.shape[1]):
                f[u, b] = a[u, b] * a[units + u, b]
        else:
            for b in range(x.shape[1]):
                f[u, b] = _ZERO if a[u, b] <= _ZERO else a[u, b]


@njit(**INNER)
def _write_unit_gradients(
    kind: int,
    x: Array,
    units: int,
    inner: Array,
    a: Array,
    of_f: Array,
    grad: Array,
) -> None:
    columns, rows = x.shape
    weight, bias = _layer(kind, columns, units, inner)
    of_weight, of_bias = _layer(kind, columns, units, grad)
    # Of the layer's outputs.
    of_a = np.empty((len(bias), rows), np.float32)
    for u in range(units):
        if kind == _GATED:
            for b in range(rows):
                of_a[u, b] = of_f[u, b] * a[units + u, b]
                of_a[units + u, b] = of_f[u, b] * a[u, b]
        else:
            for b in range(rows):
                of_a[u, b] = _ZERO if a[u, b] <= _ZERO else of_f[u, b]
    # Of the bias.
    for u in range(len(bias)):
        total = _ZERO
        for b in range(rows):
            total += of_a[u, b]
        of_bias[u] += total
    # Of the weight, turned: long rows make fast products.
    turned = np.empty((rows, len(bias)), np.float32)
    transpose(of_a, turned)
    of_turned = np.zeros((columns, len(bias)), np.float32)
    add_product(x, turned, of_turned)
    for d in range(columns):
        for u in range(len(bias)):
            of_weight[u, d] += of_turned[d, u]
    if kind != _GATE:
        return
    # A gate gets the agreement of its column's weights with their gradients, and a pull towards 0.
    for d in range(columns):
        gate = inner[d]
        if gate <= _ZERO:
            gate = _ZERO
        else:
            grad[d] += _GATE_PULL
            for u in range(units):
                grad[d] += of_weight[u, d] * weight[u, d]
        # The weights have seen the scaled column.
        for u in range(units):
            of_weight[u, d] *= gate


@njit(**INNER)
def _frequency(log_frequency: Scalar, columns: int) -> tuple[Scalar, Scalar]:
    """Compute a frequency, and its derivative by what is learned."""
    spread = _SPREAD * np.float32(math.sqrt(columns))
    frequency = _BASE_FREQUENCY * exp(spread * log_frequency)
    return frequency, frequency * spread


@njit(**INNER)
def _waves(
    x: Array,
    log_frequency: Array,
    f: Array,
) -> None:
    """Write the sines, then the cosines of all columns at one frequency after the other."""
    columns, rows = x.shape
    half = len(f) // 2
    for k in range(half):
        frequency, _ = _frequency(log_frequency[k], columns)
        for b in range(rows):
            f[k, b] = x[k % columns, b] * frequency
    # One long row of angles: a loop takes eight at a time.
    sines = f[:half].reshape(-1)
    cosines = f[half:].reshape(-1)
    for i in range(len(sines)):
        sines[i], cosines[i] = sin_cos(sines[i])


@njit(**INNER)
def _write_wave_gradients(
    x: Array,
    log_frequency: Array,
    f: Array,
    of_f: Array,
    grad: Array,
) -> None:
    columns, rows = x.shape
    half = len(f) // 2
    for k in range(half):
        # The derivative of a sine is its cosine, that of a cosine the sine below 0.
        _, slope = _frequency(log_frequency[k], columns)
        total = _ZERO
        for b in range(rows):
            of_angle = of_f[k, b] * f[half + k, b] - of_f[half + k, b] * f[k, b]
            total += of_angle * x[k % columns, b]
        grad[k] += total * slope


@njit(**INNER)
def _raw_features(
    kind: int,
    x: Array,
    fitted: Array,
    f: Array,
) -> None:
    """Compute features that do not learn, before they are scaled; ``fitted`` are the numbers that they need."""
    columns, rows = x.shape
    if kind in (_EQUALITY, _COMPARE):
        _pairs(kind, x, f)
    elif kind == _RBF:
        _radial(x, fitted, f)
    elif kind == _BIN:
        # One-hot.
        rank = np.empty(rows, np.int32)
        edges = fitted.reshape(_BINS - 1, columns)
        clear(f)
        for d in range(columns):
            _rank(x[d], edges[:, d], rank)
            for b in range(rows):
                f[d * _BINS + rank[b], b] = _ONE
    elif kind == _QUANTILE:
        # Of as many ranks as there are knots all scores are known.
        rank = np.empty(rows, np.int32)
        knots = fitted.reshape(_KNOTS, columns)
        for d in range(columns):
            _rank(x[d], knots[:, d], rank)
            for b in range(rows):
                f[d, b] = _SCORES[rank[b]]
    elif kind == _SORT:
        _sort(x, f)
    else:
        _directions(x, f)


@njit(**INNER)
def _pairs(
    kind: int,
    x: Array,
    f: Array,
) -> None:
    # All differences, in the order of the pairs.
    columns, rows = x.shape
    k = 0
    for i in range(columns - 1):
        for j in range(i + 1, columns):
            for b in range(rows):
                f[k, b] = x[i, b] - x[j, b]
            k += 1
    # What is made of them.
    flat = f.reshape(-1)
    if kind == _COMPARE:
        for i in range(len(flat)):
            flat[i] = tanh(_THREE * flat[i])
    else:
        for i in range(len(flat)):
            exponent = -_SHARPNESS * flat[i] * flat[i]
            flat[i] = exp(_LEAST_EXPONENT if exponent < _LEAST_EXPONENT else exponent)


@njit(**INNER)
def _square_lengths(x: Array) -> Array:
    # Of all rows side by side.
    lengths = np.zeros(x.shape[1], np.float32)
    for d in range(len(x)):
        for b in range(len(lengths)):
            lengths[b] += x[d, b] * x[d, b]
    return lengths


@njit(**INNER)
def _radial(
    x: Array,
    fitted: Array,
    f: Array,
) -> None:
    """By ‖x − c‖² = ‖x‖² + ‖c‖² − 2 x · c."""
    columns, rows = x.shape
    centres = fitted[: _CENTRES * columns].reshape(_CENTRES, columns)
    factor = -_ONE / fitted[_CENTRES * columns]
    # ‖x‖², and x · c as one product.
    lengths = _square_lengths(x)
    clear(f)
    add_product(centres, x, f)
    # Rounding must not make a distance negative; far centres would be denormal.
    for k in range(_CENTRES):
        length = _ZERO
        for d in range(columns):
            length += centres[k, d] * centres[k, d]
        for b in range(rows):
            exponent = (lengths[b] + length - _TWO * f[k, b]) * factor
            exponent = _ZERO if exponent > _ZERO else exponent
            f[k, b] = exp(_LEAST_EXPONENT if exponent < _LEAST_EXPONENT else exponent)


@njit(**INNER)
def _rank(
    values: Array,
    bounds: Array,
    rank: NDArray[np.int32],
) -> None:
    """Count the bounds that each value is not below."""
    for b in range(len(values)):
        rank[b] = 0
    for bound in bounds:
        for b in range(len(values)):
            rank[b] += values[b] >= bound


@njit(**INNER)
def _sort(x: Array, f: Array) -> None:
    """Sort each row: odd-even transposition, which has no branches."""
    copy(x, f)
    for turn in range(len(f)):
        for d in range(turn % 2, len(f) - 1, 2):
            for b in range(f.shape[1]):
                low = f[d, b]
                high = f[d + 1, b]
                # A pair of neighbours, in eight rows at once.
                f[d, b] = min(low, high)
                f[d + 1, b] = max(low, high)


@njit(**INNER)
def _directions(x: Array, f: Array) -> None:
    columns, rows = x.shape
    lengths = _square_lengths(x)
    # A row of zeros has no direction: it stays 0.
    for b in range(rows):
        length = np.float32(math.sqrt(lengths[b]))
        lengths[b] = _LEAST_STD if length < _LEAST_STD else length
    for d in range(columns):
        for b in range(rows):
            f[d, b] = x[d, b] / lengths[b]
