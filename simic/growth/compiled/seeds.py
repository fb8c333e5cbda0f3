"""Seeds of hosts for tables, compiled: features φ of a few rows, and the gradients of what is inside of φ.

They are those of ``growth/networks/tabular.py``, which says what each is for; tests hold the two to each other. The
numbers of a seed lie in one row, as in ``Template``: first B ``[F, H]``, then the parameters of φ.
"""

import math
from statistics import NormalDist

import numpy as np
from numba import njit

from simic.growth.compiled.arithmetic import (
    INNER,
    add_product,
    add_turned_product,
    exp,
    sin_cos,
    tanh,
    transpose,
)
from simic.growth.networks import tabular

_ZERO = np.float32(0)
_GATE_PULL = np.float32(tabular.GATE_PULL)
_LEAST_EXPONENT = np.float32(tabular.LEAST_EXPONENT)
_SHARPNESS = np.float32(tabular.SHARPNESS)
_LEAST_STD = np.float32(tabular.LEAST_STD)
_THREE = np.float32(3)
_FREQUENCIES = tabular.FREQUENCIES
_BASE_FREQUENCY = np.float32(tabular.BASE_FREQUENCY)
_SPREAD = np.float32(tabular.SPREAD)
_CENTRES = tabular.CENTRES
_BINS = tabular.BINS
_KNOTS = tabular.KNOTS
_SCORES = np.array(
    [NormalDist().inv_cdf((rank + 0.5) / (_KNOTS + 1)) for rank in range(_KNOTS + 1)], np.float32
)

# Numbers of the blueprints.
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
NO_SEED = -1
FIRST_FIXED = _EQUALITY


@njit(**INNER)
def layer_width(kind, units):
    """Tell how many outputs the linear layer of a blueprint has."""
    if kind == _GATED:
        return 2 * units
    return units if kind in (_MLP, _GATE) else 0


@njit(**INNER)
def compute_features(kind, x, units, inner, f, a):
    """Compute features.

    Args:
        kind: Number of the blueprint.
        x: Rows ``[B, D]``.
        units: Width of the host's first layer, H.
        inner: Numbers of the seed after B.
        f: Is written: features ``[B, F]``.
        a: Is written by linear layers: their outputs ``[B, A]``.
    """
    if kind < FIRST_FIXED:
        _learned_features(kind, x, units, inner, f, a)
        return
    features = f.shape[1]
    _raw_features(kind, x, inner[2 * features :], f)
    mean = inner[:features]
    scale = inner[features : 2 * features]
    for b in range(len(x)):
        for k in range(features):
            f[b, k] = (f[b, k] - mean[k]) * scale[k]


@njit(**INNER)
def _learned_features(kind, x, units, inner, f, a):
    columns = x.shape[1]
    if kind == _PERIODIC:
        half = _FREQUENCIES * columns
        for k in range(half):
            frequency = _BASE_FREQUENCY * exp(_SPREAD * np.float32(math.sqrt(columns)) * inner[k])
            for b in range(len(x)):
                f[b, k], f[b, half + k] = sin_cos(x[b, k % columns] * frequency)
        return
    # Linear layers; the gate scales what they read.
    outputs = layer_width(kind, units)
    first = columns if kind == _GATE else 0
    weight = inner[first : first + outputs * columns].reshape(outputs, columns)
    bias = inner[first + outputs * columns :]
    turned = np.empty((columns, outputs), np.float32)
    transpose(weight, turned)
    if kind == _GATE:
        for d in range(columns):
            gate = _ZERO if inner[d] <= _ZERO else inner[d]
            for u in range(outputs):
                turned[d, u] *= gate
    for b in range(len(x)):
        for u in range(outputs):
            a[b, u] = bias[u]
    add_product(x, turned, a)
    for b in range(len(x)):
        if kind == _GATED:
            for u in range(units):
                f[b, u] = a[b, u] * a[b, units + u]
        else:
            for u in range(units):
                f[b, u] = _ZERO if a[b, u] <= _ZERO else a[b, u]


@njit(**INNER)
def add_inner_gradients(kind, x, units, inner, f, a, of_f, grad):
    """Add the gradients of what is inside of φ.

    Args:
        kind: A blueprint that learns.
        x: As of ``compute_features``, like all before ``of_f``.
        units: Width of the host's first layer.
        inner: Numbers of the seed after B.
        f: Features.
        a: As it was written there.
        of_f: Gradient of the features, ``[B, F]``; is overwritten.
        grad: Is added to, like ``inner``.
    """
    rows, columns = x.shape
    if kind == _PERIODIC:
        half = _FREQUENCIES * columns
        spread = _SPREAD * np.float32(math.sqrt(columns))
        for k in range(half):
            total = _ZERO
            for b in range(rows):
                of_angle = of_f[b, k] * f[b, half + k] - of_f[b, half + k] * f[b, k]
                total += of_angle * x[b, k % columns]
            grad[k] += total * _BASE_FREQUENCY * exp(spread * inner[k]) * spread
        return
    outputs = layer_width(kind, units)
    first = columns if kind == _GATE else 0
    weight = inner[first : first + outputs * columns].reshape(outputs, columns)
    # Of the layer's outputs.
    of_a = np.empty((rows, outputs), np.float32)
    for b in range(rows):
        if kind == _GATED:
            for u in range(units):
                of_a[b, u] = of_f[b, u] * a[b, units + u]
                of_a[b, units + u] = of_f[b, u] * a[b, u]
        else:
            for u in range(units):
                of_a[b, u] = _ZERO if a[b, u] <= _ZERO else of_f[b, u]
    # Of weight and bias.
    turned = np.zeros((columns, outputs), np.float32)
    add_turned_product(x, of_a, turned)
    bias = grad[first + outputs * columns :]
    for b in range(rows):
        for u in range(outputs):
            bias[u] += of_a[b, u]
    # Turned back; a gate scales its column, and is told the agreement of the column's weights and their gradients.
    of_weight = grad[first : first + outputs * columns].reshape(outputs, columns)
    for d in range(columns):
        if kind == _GATE:
            gate = inner[d]
            agreement = _ZERO
            for u in range(outputs):
                agreement += turned[d, u] * weight[u, d]
            if gate <= _ZERO:
                gate = _ZERO
            else:
                grad[d] += agreement + _GATE_PULL
            for u in range(outputs):
                of_weight[u, d] += turned[d, u] * gate
        else:
            for u in range(outputs):
                of_weight[u, d] += turned[d, u]


@njit(**INNER)
def _raw_features(kind, x, fitted, f):
    """Compute features that do not learn, before they are scaled; ``fitted`` are the numbers that they need."""
    rows, columns = x.shape
    if kind in (_EQUALITY, _COMPARE):
        for b in range(rows):
            k = 0
            for i in range(columns - 1):
                for j in range(i + 1, columns):
                    f[b, k] = x[b, i] - x[b, j]
                    k += 1
            if kind == _COMPARE:
                for k in range(f.shape[1]):
                    f[b, k] = tanh(_THREE * f[b, k])
            else:
                for k in range(f.shape[1]):
                    exponent = -_SHARPNESS * f[b, k] * f[b, k]
                    exponent = _LEAST_EXPONENT if exponent < _LEAST_EXPONENT else exponent
                    f[b, k] = exp(exponent)
    elif kind == _RBF:
        centres = np.empty((columns, _CENTRES), np.float32)
        transpose(fitted[: _CENTRES * columns].reshape(_CENTRES, columns), centres)
        factor = -np.float32(1) / fitted[_CENTRES * columns]
        for b in range(rows):
            for k in range(_CENTRES):
                f[b, k] = _ZERO
            for d in range(columns):
                value = x[b, d]
                for k in range(_CENTRES):
                    difference = value - centres[d, k]
                    f[b, k] += difference * difference
            for k in range(_CENTRES):
                exponent = f[b, k] * factor
                exponent = _LEAST_EXPONENT if exponent < _LEAST_EXPONENT else exponent
                f[b, k] = exp(exponent)
    elif kind == _BIN:
        edges = fitted.reshape(_BINS - 1, columns)
        for b in range(rows):
            for k in range(f.shape[1]):
                f[b, k] = _ZERO
            for d in range(columns):
                f[b, d * _BINS + _rank(x[b, d], edges[:, d])] = np.float32(1)
    elif kind == _QUANTILE:
        knots = fitted.reshape(_KNOTS, columns)
        for b in range(rows):
            for d in range(columns):
                f[b, d] = _SCORES[_rank(x[b, d], knots[:, d])]
    elif kind == _SORT:
        for b in range(rows):
            for d in range(columns):
                value = x[b, d]
                k = d
                while k > 0 and f[b, k - 1] > value:
                    f[b, k] = f[b, k - 1]
                    k -= 1
                f[b, k] = value
    else:
        for b in range(rows):
            total = _ZERO
            for d in range(columns):
                total += x[b, d] * x[b, d]
            length = np.float32(math.sqrt(total))
            length = _LEAST_STD if length < _LEAST_STD else length
            for d in range(columns):
                f[b, d] = x[b, d] / length


@njit(**INNER)
def _rank(value, bounds):
    """Count the bounds that a value is not below."""
    rank = 0
    for bound in bounds:
        rank += value >= bound
    return rank
