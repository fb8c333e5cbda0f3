"""Hosts for tables, compiled: an epoch of training and an evaluation, one host after the other.

What a host needs at once stays in the core's cache, and its numbers are the same whatever hosts are beside it.
"""

import hashlib
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from simic.growth.compiled.arithmetic import (
    INNER,
    OPTIONS,
    Array,
    Scalar,
    add_product,
    add_turned_product,
    clear,
    copy,
    dots,
    exp,
    transpose,
)
from simic.growth.compiled.seeds import (
    FIRST_FIXED,
    Flags,
    Integers,
    compute_features,
    gain_of,
    layer_width,
    write_inner_gradients,
)
from simic.growth.networks import tabular

_log = logging.getLogger(__name__)

# Of slots that have no seed.
NO_SEED = -1
_ZERO = np.float32(0)
_ONE = np.float32(1)
# As torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW have them.
_CLIP_EPS = 1e-6
_ADAM_EPS = np.float32(1e-8)
# Samples of an evaluation at once.
_SAMPLES = 64


class Widths(NamedTuple):
    """Columns of a row, units of both hidden layers, and classes."""

    columns: int
    units1: int
    units2: int
    classes: int


class Settings(NamedTuple):
    """Of the epoch; ``clip`` is the largest norm of a gradient."""

    learning_rate: float
    host_decay: float
    seed_decay: float
    clip: float
    beta1: float
    beta2: float


class ModuleRows(NamedTuple):
    """Where modules live, a row for each host: parameters and moments ``[E, n]``, updates done ``[E]``."""

    param: Array
    mean: Array
    variance: Array
    step: Any  # float64


class Measured(NamedTuple):
    """Of each host and minibatch, ``[E, n]``, seeds ``[K, E, n]``; norms are before clipping."""

    losses: Array
    accuracies: Array
    host_norms: Array
    seed_norms: Array


class SeedGroup(NamedTuple):
    """Seeds of one slot that are of one blueprint; NO_SEED: there are none."""

    kind: int
    features: int
    rows: ModuleRows


class _Layers(NamedTuple):
    """Tensors of a host, or their gradients; for fast products the first two weights are ``[inputs, outputs]``."""

    weight1: Array
    bias1: Array
    weight2: Array
    bias2: Array
    weight3: Array  # [classes, inputs]
    bias3: Array


class _Activations(NamedTuple):
    """What a host computes of B samples: ``[B, …]``."""

    sum1: Array
    hidden1: Array
    sum2: Array
    hidden2: Array
    logits: Array
    losses: Array
    right: Flags


class _Seed(NamedTuple):
    """What a seed computes of B samples, its numbers, and their gradient."""

    x: Array  # [D, B] rows side by side
    features: Array  # [F, B]
    layer: Array  # [A, B] outputs of its linear layer
    out: Array  # [F, H1] B times its gain
    inner: Array  # what is inside of φ
    grad: Array  # of what learns


@njit(**INNER)
def _layers(row: Array, widths: Widths) -> _Layers:
    """View the tensors in a row of a host."""
    # Where each tensor ends.
    first = widths.columns * widths.units1
    second = first + widths.units1
    third = second + widths.units1 * widths.units2
    fourth = third + widths.units2
    fifth = fourth + widths.units2 * widths.classes
    return _Layers(
        row[:first].reshape(widths.columns, widths.units1),
        row[first:second],
        row[second:third].reshape(widths.units1, widths.units2),
        row[third:fourth],
        row[fourth:fifth].reshape(widths.classes, widths.units2),
        row[fifth:],
    )


@njit(**INNER)
def _turn(
    source: Array,
    target: Array,
    widths: Widths,
    rows1: int,
    rows2: int,
) -> None:
    """Copy a row of a host with its first two weights turned; they have ``rows1`` and ``rows2`` rows in the source."""
    # Biases and the third weight stay as they are.
    copy(source, target)
    first = widths.columns * widths.units1
    second = first + widths.units1
    third = second + widths.units1 * widths.units2
    _turn_matrix(source[:first], target[:first], rows1)
    _turn_matrix(source[second:third], target[second:third], rows2)


@njit(**INNER)
def _turn_matrix(
    source: Array,
    target: Array,
    rows: int,
) -> None:
    columns = len(source) // rows
    transpose(source.reshape(rows, columns), target.reshape(columns, rows))


@njit(**INNER)
def _activations(samples: int, widths: Widths) -> _Activations:
    """Allocate activations."""
    return _Activations(
        np.empty((samples, widths.units1), np.float32),
        np.empty((samples, widths.units1), np.float32),
        np.empty((samples, widths.units2), np.float32),
        np.empty((samples, widths.units2), np.float32),
        np.empty((samples, widths.classes), np.float32),
        np.empty(samples, np.float32),
        np.empty(samples, np.bool_),
    )


@njit(**INNER)
def _seed(
    group: SeedGroup,
    samples: int,
    widths: Widths,
    row: Array,
) -> _Seed:
    """Allocate what a seed computes; ``row`` are its numbers."""
    return _Seed(
        np.empty((widths.columns, samples), np.float32),
        np.empty((group.features, samples), np.float32),
        np.empty((layer_width(group.kind, widths.units1), samples), np.float32),
        np.empty((group.features, widths.units1), np.float32),
        row[group.features * widths.units1 :],
        np.empty(group.rows.mean.shape[1], np.float32),
    )


# --- forward and backward --------------------------------------------------------------------------------------------


@njit(**INNER)
def _add_bias(product: Array, bias: Array) -> None:
    """Set all rows of what a product will be added to."""
    for b in range(len(product)):
        for j in range(len(bias)):
            product[b, j] = bias[j]


@njit(**INNER)
def _relu(z: Array, hidden: Array) -> None:
    """Cut at 0; NaN stays. (In place it would not be done for eight numbers at a time.)"""
    # As one long row.
    before = z.reshape(-1)
    after = hidden.reshape(-1)
    for i in range(len(before)):
        after[i] = _ZERO if before[i] <= _ZERO else before[i]


@njit(**INNER)
def _look(
    group: SeedGroup,
    rows: Array,
    widths: Widths,
    gain: Scalar,
    row: Array,
    seed: _Seed,
) -> None:
    """Compute the features of a seed, whose numbers are ``row``, and scale its B."""
    # Seeds take rows side by side, hosts one below the other.
    transpose(rows, seed.x)
    compute_features(group.kind, seed.x, widths.units1, seed.inner, seed.features, seed.layer)
    # B by the gain: it is smaller than the features, and the row begins with it.
    out = seed.out.reshape(-1)
    for i in range(len(out)):
        out[i] = gain * row[i]


@njit(**INNER)
def _forward(
    layers: _Layers,
    activations: _Activations,
    lacking: Flags,
    labels: Integers,
) -> None:
    """Go on from the first sum; the logits become probabilities."""
    _relu(activations.sum1, activations.hidden1)
    _add_bias(activations.sum2, layers.bias2)
    add_product(activations.hidden1, layers.weight2, activations.sum2)
    _relu(activations.sum2, activations.hidden2)
    # (Few classes: a product by rows would not fill a vector.)
    dots(activations.hidden2, layers.weight3, activations.logits)
    _score(activations, layers.bias3, lacking, labels)


@njit(**INNER)
def _score(
    activations: _Activations,
    bias: Array,
    lacking: Flags,
    labels: Integers,
) -> None:
    """Make logits probabilities; write the losses in nats, and which answers are right."""
    logits, losses, right = activations.logits, activations.losses, activations.right
    classes = len(bias)
    for b in range(len(labels)):
        # The first of the largest logits is the answer.
        largest = np.float32(-np.inf)
        best = -1
        total = _ZERO
        for c in range(classes):
            logit = logits[b, c] + bias[c]
            total += logit
            if lacking[c]:
                logit = np.float32(-np.inf)
            if logit > largest:
                largest = logit
                best = c
            logits[b, c] = logit
        # One number that is not finite makes their sum so. (math.isfinite is a difference to itself, taken for 0.)
        right[b] = best == labels[b] and abs(total) < np.float32(np.inf)
        for c in range(classes):
            logits[b, c] -= largest
        losses[b] = -logits[b, labels[b]]
    # Of all classes and samples in one loop.
    flat = logits.reshape(-1)
    for i in range(len(flat)):
        flat[i] = exp(flat[i])
    # A class that the task lacks has no part.
    for b in range(len(labels)):
        total = _ZERO
        for c in range(classes):
            total += logits[b, c]
        losses[b] += np.float32(math.log(total))
        for c in range(classes):
            logits[b, c] = _ZERO if lacking[c] else logits[b, c] / total


@njit(**INNER)
def _backward(
    layers: _Layers,
    grads: _Layers,
    activations: _Activations,
    rows: Array,
    labels: Integers,
) -> Array:
    """Write the gradients of the mean loss into ``grads``, which are 0; give that of the first sum."""
    # p − 1 for the answer, p for the other classes.
    grad = activations.logits
    share = _ONE / np.float32(len(labels))
    for b in range(len(labels)):
        grad[b, labels[b]] -= _ONE
        for c in range(grad.shape[1]):
            grad[b, c] *= share
            grads.bias3[c] += grad[b, c]
    # Third layer, second, first.
    add_turned_product(grad, activations.hidden2, grads.weight3)
    of_sum2 = np.zeros_like(activations.sum2)
    add_product(grad, layers.weight3, of_sum2)
    _cut(of_sum2, activations.hidden2, grads.bias2)
    add_turned_product(activations.hidden1, of_sum2, grads.weight2)
    turned = np.empty((layers.weight2.shape[1], layers.weight2.shape[0]), np.float32)
    transpose(layers.weight2, turned)
    # It is what reaches the seed too.
    of_sum1 = np.zeros_like(activations.sum1)
    add_product(of_sum2, turned, of_sum1)
    _cut(of_sum1, activations.hidden1, grads.bias1)
    add_turned_product(rows, of_sum1, grads.weight1)
    return of_sum1


@njit(**INNER)
def _cut(
    grad: Array,
    hidden: Array,
    of_bias: Array,
) -> None:
    """Pass a gradient through relu, and sum it for the bias."""
    for b in range(grad.shape[0]):
        for j in range(grad.shape[1]):
            # NaN is not below 0: it passes.
            value = _ZERO if hidden[b, j] <= _ZERO else grad[b, j]
            grad[b, j] = value
            of_bias[j] += value


@njit(**INNER)
def _seed_backward(
    kind: int,
    gain: Scalar,
    seed: _Seed,
    of_sum1: Array,
) -> None:
    """Write the gradients of a seed; in TRAINING as if it had added."""
    # Of B: the product of the features and what reaches the host.
    grad = seed.grad
    clear(grad)
    outs = seed.out.size
    add_product(seed.features, of_sum1, grad[:outs].reshape(seed.out.shape))
    for i in range(outs):
        grad[i] *= gain
    # Of what is inside of φ, if anything is.
    if kind >= FIRST_FIXED:
        return
    turned = np.empty((of_sum1.shape[1], of_sum1.shape[0]), np.float32)
    transpose(of_sum1, turned)
    of_features = np.zeros_like(seed.features)
    add_product(seed.out, turned, of_features)
    units = of_sum1.shape[1]
    write_inner_gradients(
        kind, seed.x, units, seed.inner, seed.features, seed.layer, of_features, grad[outs:]
    )


@njit(**INNER)
def _step(
    param: Array,
    grad: Array,
    mean: Array,
    variance: Array,
    step: Scalar,
    decay: Scalar,
    settings: Settings,
) -> Scalar:
    """Clip the gradient of a module and make a step of AdamW; give the norm before clipping."""
    norm = _norm(grad)
    # NaN stays NaN.
    scale = np.float32(settings.clip / (norm + _CLIP_EPS))
    scale = _ONE if scale > _ONE else scale
    # In double precision what is computed once, in single what is computed for each number.
    beta1, beta2 = np.float32(settings.beta1), np.float32(settings.beta2)
    rest1, rest2 = np.float32(1 - settings.beta1), np.float32(1 - settings.beta2)
    length = np.float32(settings.learning_rate / (1 - settings.beta1**step))
    correction = np.float32(1 / math.sqrt(1 - settings.beta2**step))
    remains = np.float32(1 - settings.learning_rate * decay)
    for i in range(len(grad)):
        g = grad[i] * scale
        m = beta1 * mean[i] + rest1 * g
        v = beta2 * variance[i] + rest2 * g * g
        mean[i] = m
        variance[i] = v
        root = np.float32(math.sqrt(v)) * correction
        param[i] = param[i] * remains - length * m / (root + _ADAM_EPS)
    return norm


@njit(**INNER)
def _seed_step(
    rows: ModuleRows,
    host: int,
    grad: Array,
    moves: bool,
    settings: Settings,
) -> Scalar:
    """Step a seed where it lives, unless it is frozen; give the norm of its gradient."""
    # A frozen seed has made no update: its bias corrections stand still.
    if not moves:
        return _norm(grad)
    rows.step[host] += 1
    return _step(
        rows.param[host],
        grad,
        rows.mean[host],
        rows.variance[host],
        rows.step[host],
        settings.seed_decay,
        settings,
    )


@njit(**INNER)
def _norm(grad: Array) -> Scalar:
    # One infinite number makes it infinite, NaN makes it NaN: both are statistics of a host.
    square = _ZERO
    for value in grad:
        square += value * value
    return np.float32(math.sqrt(square))


# --- what is called from outside -------------------------------------------------------------------------------------


@njit(**INNER)
def _gather(
    order: Integers,
    x: Array,
    y: Integers,
    rows: Array,
    labels: Integers,
) -> None:
    """Gather the rows of an epoch at once: memory answers many questions side by side."""
    for n in range(order.shape[0]):
        for b in range(order.shape[1]):
            row = order[n, b]
            labels[n, b] = y[row]
            for d in range(x.shape[1]):
                rows[n, b, d] = x[row, d]


@njit(**INNER)
def _train_hosts(
    widths: Widths,
    settings: Settings,
    host_rows: ModuleRows,
    groups: list[SeedGroup],
    measured: Measured,
    hosts: Integers,
    x: Array,
    y: Integers,
    order: Integers,
    lacking: Flags,
    alphas: Array,
    frozen: Flags,
) -> None:
    """Train some hosts whose seeds are of the same blueprints for an epoch, in place.

    Args:
        widths: Of the hosts.
        settings: Of the epoch.
        host_rows: Of all hosts.
        groups: For each slot the seeds of its blueprint.
        measured: Is written.
        hosts: Places of the hosts, ``[R]``.
        x: All rows of the data, ``[N, D]``.
        y: Their labels, ``[N]``.
        order: Rows of the minibatches by host, ``[E, n, B]``.
        lacking: Classes that are no answers, ``[E, C]``.
        alphas: Amplitudes ``[E, K]``; NaN: the seed learns and adds nothing.
        frozen: Seeds that do not move, ``[E, K]``.
    """
    # What one host needs at once; it is taken again for the next.
    batches, samples = order.shape[1:]
    numbers = host_rows.param.shape[1]
    param = np.empty(numbers, np.float32)
    mean = np.empty(numbers, np.float32)
    variance = np.empty(numbers, np.float32)
    grad = np.empty(numbers, np.float32)
    layers = _layers(param, widths)
    grads = _layers(grad, widths)
    rows = np.empty((batches, samples, widths.columns), np.float32)
    labels = np.empty((batches, samples), np.int64)
    activations = _activations(samples, widths)
    for host in hosts:
        # The host, its rows of this epoch, and its seeds.
        _turn(host_rows.param[host], param, widths, widths.units1, widths.units2)
        _turn(host_rows.mean[host], mean, widths, widths.units1, widths.units2)
        _turn(host_rows.variance[host], variance, widths, widths.units1, widths.units2)
        _gather(order[host], x, y, rows, labels)
        seeds = [_seed(group, samples, widths, group.rows.param[host]) for group in groups]
        for n in range(batches):
            # Forward.
            _add_bias(activations.sum1, layers.bias1)
            add_product(rows[n], layers.weight1, activations.sum1)
            for k in range(len(groups)):
                if groups[k].kind != NO_SEED:
                    gain = _gain(groups[k].kind, alphas[host, k])
                    row = groups[k].rows.param[host]
                    _look(groups[k], rows[n], widths, gain, row, seeds[k])
                    if not math.isnan(alphas[host, k]):
                        add_turned_product(seeds[k].features, seeds[k].out, activations.sum1)
            _forward(layers, activations, lacking[host], labels[n])
            measured.losses[host, n] = activations.losses.sum() / samples
            measured.accuracies[host, n] = activations.right.sum() / samples

            # Backward.
            clear(grad)
            of_sum1 = _backward(layers, grads, activations, rows[n], labels[n])
            for k in range(len(groups)):
                if groups[k].kind != NO_SEED:
                    gain = _gain(groups[k].kind, alphas[host, k])
                    _seed_backward(groups[k].kind, gain, seeds[k], of_sum1)
            # Each module is clipped apart.
            host_rows.step[host] += 1
            measured.host_norms[host, n] = _step(
                param, grad, mean, variance, host_rows.step[host], settings.host_decay, settings
            )
            for k in range(len(groups)):
                if groups[k].kind != NO_SEED:
                    measured.seed_norms[k, host, n] = _seed_step(
                        groups[k].rows, host, seeds[k].grad, not frozen[host, k], settings
                    )
        # Seeds were changed where they live.
        _turn(param, host_rows.param[host], widths, widths.columns, widths.units1)
        _turn(mean, host_rows.mean[host], widths, widths.columns, widths.units1)
        _turn(variance, host_rows.variance[host], widths, widths.columns, widths.units1)


@njit(**INNER)
def _gain(kind: int, alpha: Scalar) -> Scalar:
    """Tell the factor of φ · B at an amplitude; NaN: as if it were 1."""
    return gain_of(kind) * (_ONE if math.isnan(alpha) else alpha)


@njit(**INNER)
def _evaluate_hosts(
    widths: Widths,
    groups: list[SeedGroup],
    hosts: Integers,
    x: Array,
    y: Integers,
    tasks: Integers,
    lacking: Flags,
    host_param: Array,
    alphas: Array,
    on: Flags,
    correct: Flags,
    loss: Array,
) -> None:
    """Evaluate configurations of some hosts whose seeds are of the same blueprints.

    Args:
        widths: Of the hosts.
        groups: As of ``train_hosts``, like ``hosts``, ``lacking`` and ``alphas``.
        hosts: Places of the hosts.
        x: Rows by task, ``[T, N, D]``.
        y: Their labels, ``[T, N]``.
        tasks: Of the hosts, ``[E]``.
        lacking: Classes that are no answers.
        host_param: Of the hosts, ``[E, …]``.
        alphas: Amplitudes.
        on: Whether a configuration has a seed, ``[Cfg, E, K]``.
        correct: Is written: right answers, ``[Cfg, E, N]``.
        loss: Is written: mean losses, ``[Cfg, E]``.
    """
    param = np.empty(host_param.shape[1], np.float32)
    layers = _layers(param, widths)
    number = x.shape[1]
    networks = np.empty(len(on), np.int64)
    for host in hosts:
        _turn(host_param[host], param, widths, widths.units1, widths.units2)
        # Which network a configuration asks for: a bit for each seed.
        for configuration in range(len(on)):
            loss[configuration, host] = _ZERO
            networks[configuration] = 0
            for k in range(len(groups)):
                networks[configuration] += int(on[configuration, host, k]) << k
        for first in range(0, number, _SAMPLES):
            last = min(first + _SAMPLES, number)
            rows = x[tasks[host], first:last]
            labels = y[tasks[host], first:last]
            # All networks share the first product. (The last samples of a split may be fewer.)
            activations = _activations(last - first, widths)
            bare = np.empty_like(activations.sum1)
            _add_bias(bare, layers.bias1)
            add_product(rows, layers.weight1, bare)
            seeds = [_seed(group, last - first, widths, group.rows.param[host]) for group in groups]
            for k in range(len(groups)):
                if groups[k].kind != NO_SEED:
                    gain = _gain(groups[k].kind, alphas[host, k])
                    row = groups[k].rows.param[host]
                    _look(groups[k], rows, widths, gain, row, seeds[k])
            for n in range(len(on)):
                if (networks[:n] == networks[n]).any():
                    continue
                copy(bare.reshape(-1), activations.sum1.reshape(-1))
                for k in range(len(groups)):
                    if on[n, host, k]:
                        add_turned_product(seeds[k].features, seeds[k].out, activations.sum1)
                _forward(layers, activations, lacking[host], labels)
                for configuration in range(n, len(on)):
                    if networks[configuration] == networks[n]:
                        copy(activations.right, correct[configuration, host, first:last])
                        loss[configuration, host] += activations.losses.sum() / number


# --- numba's cache ----------------------------------------------------------------------------------------------------


def _sources() -> str:
    """Hash all sources that the loops are made of."""
    paths = [*sorted(Path(__file__).parent.glob("*.py")), Path(tabular.__file__)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _training(sources: str, cache: bool) -> Callable[..., None]:
    """Make the loop. numba looks for it by this file and the closure, where the hash stands for all other sources."""

    # Plain tuples: an old cache that names classes which are gone could not be read.
    @njit(cache=cache, nogil=True, **OPTIONS)
    def train_hosts(
        widths: tuple,
        settings: tuple,
        host_rows: tuple,
        groups: tuple,
        measured: tuple,
        *arguments: Any,
    ) -> None:
        assert sources
        _train_hosts(
            Widths(*widths),
            Settings(*settings),
            ModuleRows(*host_rows),
            [SeedGroup(kind, features, ModuleRows(*rows)) for kind, features, rows in groups],
            Measured(*measured),
            *arguments,
        )

    return train_hosts


def _evaluation(sources: str, cache: bool) -> Callable[..., None]:
    """Make the loop, as above."""

    @njit(cache=cache, nogil=True, **OPTIONS)
    def evaluate_hosts(
        widths: tuple,
        groups: tuple,
        *arguments: Any,
    ) -> None:
        assert sources
        _evaluate_hosts(
            Widths(*widths),
            [SeedGroup(kind, features, ModuleRows(*rows)) for kind, features, rows in groups],
            *arguments,
        )

    return evaluate_hosts


def kept(make: Callable[[str, bool], Callable[..., None]]) -> Callable[..., None]:
    """Make a loop that numba keeps on disk once it is compiled."""
    try:
        return make(_sources(), True)
    # Neither this folder nor the user's cache can be written.
    except RuntimeError as error:
        _log.info("every process compiles the loops anew, some 20 seconds: %s", error)
        return make(_sources(), False)


train_hosts = kept(_training)
evaluate_hosts = kept(_evaluation)
