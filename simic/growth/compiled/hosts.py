"""Hosts for tables, compiled: an epoch of training and an evaluation, one host after the other.

What a host needs at once stays in the core's cache, and its numbers are the same whatever hosts are beside it.
"""

import math

import numpy as np
from numba import njit

from simic.growth.compiled.arithmetic import (
    INNER,
    OPTIONS,
    add_product,
    add_turned_product,
    clear,
    copy,
    dots,
    exp,
    transpose,
)
from simic.growth.compiled.cache import kept_by_source
from simic.growth.compiled.seeds import (
    FIRST_FIXED,
    NO_SEED,
    add_inner_gradients,
    compute_features,
    layer_width,
)

_ZERO = np.float32(0)
_ONE = np.float32(1)
# As torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW have them.
_CLIP_EPS = 1e-6
_ADAM_EPS = np.float32(1e-8)
# Samples of an evaluation at once.
_SAMPLES = 64


def _train_hosts(
    kind,
    widths,
    hosts,
    x,
    y,
    order,
    lacking,
    host_rows,
    seed_rows,
    alphas,
    frozen,
    settings,
    measured,
):
    """Train some hosts whose seeds are of one blueprint for an epoch, in place.

    Args:
        kind: Number of the blueprint; NO_SEED: they train alone.
        widths: Columns D, units H1 and H2, classes C and features F.
        hosts: Places of the hosts, int64 ``[R]``.
        x: All rows of the data, ``[N, D]``.
        y: Their labels, ``[N]``.
        order: Rows of the minibatches by host, ``[E, n, B]``.
        lacking: Classes that are no answers, bool ``[E, C]``.
        host_rows: Parameters, means, variances ``[E, …]`` and steps ``[E]``.
        seed_rows: The same of the seeds of this blueprint.
        alphas: Amplitudes ``[E]``; NaN: the seed learns and adds nothing.
        frozen: Seeds that do not move, bool ``[E]``.
        settings: Learning rate, weight decay of hosts and of seeds, largest norm of a gradient, both β of Adam.
        measured: Are written: losses, shares of right answers, and gradient norms of host and seed, ``[E, n]``.
    """
    columns, units, units2, classes, features = widths
    rate, host_decay, seed_decay, clip, beta1, beta2 = settings
    mean_losses, accuracies, host_norms, seed_norms = measured
    batches, samples = order.shape[1:]
    host_param, host_mean, host_variance, host_step = host_rows
    seed_param, seed_mean, seed_variance, seed_step = seed_rows
    host_width = host_param.shape[1]
    outs = features * units
    trained = seed_mean.shape[1]

    # What one host needs.
    param = np.empty(host_width, np.float32)
    mean = np.empty(host_width, np.float32)
    variance = np.empty(host_width, np.float32)
    grad = np.empty(host_width, np.float32)
    seed_grad = np.empty(trained, np.float32)
    all_rows = np.empty((batches, samples, columns), np.float32)
    all_labels = np.empty((batches, samples), np.int64)
    z1 = np.empty((samples, units), np.float32)
    z2 = np.empty((samples, units2), np.float32)
    d1 = np.empty((samples, units), np.float32)
    d2 = np.empty((samples, units2), np.float32)
    logits = np.empty((samples, classes), np.float32)
    turned = np.empty((units2, units), np.float32)
    turned_rows = np.empty((columns, samples), np.float32)
    f = np.empty((features, samples), np.float32)
    of_f = np.empty((features, samples), np.float32)
    a = np.empty((layer_width(kind, units), samples), np.float32)
    out = np.empty((features, units), np.float32)
    turned_d1 = np.empty((units, samples), np.float32)

    losses = np.empty(samples, np.float32)
    right = np.empty(samples, np.bool_)
    share = _ONE / np.float32(samples)

    for h in hosts:
        _turn(host_param[h], param, columns, units, units2)
        _turn(host_mean[h], mean, columns, units, units2)
        _turn(host_variance[h], variance, columns, units, units2)
        w1, b1, w2, b2, w3, b3 = _layers(param, columns, units, units2, classes)
        g1, gb1, g2, gb2, g3, gb3 = _layers(grad, columns, units, units2, classes)
        acts = kind != NO_SEED and not math.isnan(alphas[h])
        gain = alphas[h] if acts else _ONE
        if kind < FIRST_FIXED:
            gain *= np.float32(3)
        # All rows of the epoch: memory answers many questions at once.
        for n in range(batches):
            for b in range(samples):
                row = order[h, n, b]
                all_labels[n, b] = y[row]
                for d in range(columns):
                    all_rows[n, b, d] = x[row, d]
        for n in range(batches):
            rows = all_rows[n]
            labels = all_labels[n]
            transpose(rows, turned_rows)
            # Forward.
            _fill(z1, b1)
            add_product(rows, w1, z1)
            if kind != NO_SEED:
                inner = seed_param[h, outs:]
                compute_features(kind, turned_rows, units, inner, f, a)
                k = 0
                for i in range(features):
                    for j in range(units):
                        out[i, j] = gain * seed_param[h, k]
                        k += 1
                if acts:
                    add_turned_product(f, out, z1)
            _relu(z1)
            _fill(z2, b2)
            add_product(z1, w2, z2)
            _relu(z2)
            dots(z2, w3, logits)
            _probabilities(logits, b3, lacking[h], labels, losses, right)
            mean_losses[h, n] = _ZERO
            accuracies[h, n] = _ZERO
            for b in range(samples):
                mean_losses[h, n] += losses[b] * share
                accuracies[h, n] += right[b] * share

            # Backward: p − 1 for the answer, p for the other classes.
            for b in range(samples):
                logits[b, labels[b]] -= _ONE
                for c in range(classes):
                    logits[b, c] *= share
            clear(grad)
            for b in range(samples):
                for c in range(classes):
                    gb3[c] += logits[b, c]
            add_turned_product(logits, z2, g3)
            clear(d2)
            add_product(logits, w3, d2)
            _cut(d2, z2, gb2)
            add_turned_product(z1, d2, g2)
            transpose(w2, turned)
            clear(d1)
            add_product(d2, turned, d1)
            _cut(d1, z1, gb1)
            add_turned_product(rows, d1, g1)
            if kind != NO_SEED:
                clear(seed_grad)
                add_product(f, d1, seed_grad[:outs].reshape(features, units))
                for i in range(outs):
                    seed_grad[i] *= gain
                if kind < FIRST_FIXED:
                    transpose(d1, turned_d1)
                    clear(of_f)
                    add_product(out, turned_d1, of_f)
                    add_inner_gradients(
                        kind, turned_rows, units, inner, f, a, of_f, seed_grad[outs:]
                    )

            # Update.
            host_step[h] += 1
            host_norms[h, n] = _step(
                param,
                grad,
                mean,
                variance,
                host_step[h],
                rate,
                host_decay,
                clip,
                (beta1, beta2),
                True,
            )
            if kind != NO_SEED:
                moves = not frozen[h]
                if moves:
                    seed_step[h] += 1
                seed_norms[h, n] = _step(
                    seed_param[h],
                    seed_grad,
                    seed_mean[h],
                    seed_variance[h],
                    seed_step[h],
                    rate,
                    seed_decay,
                    clip,
                    (beta1, beta2),
                    moves,
                )
        _turn_back(param, host_param[h], columns, units, units2)
        _turn_back(mean, host_mean[h], columns, units, units2)
        _turn_back(variance, host_variance[h], columns, units, units2)


def _evaluate_hosts(
    kind, widths, hosts, x, y, tasks, lacking, host_param, seed_param, alphas, on, correct, loss
):
    """Evaluate configurations of some hosts whose seeds are of one blueprint.

    Args:
        kind: Number of the blueprint; NO_SEED: they have none.
        widths: As of ``train_hosts``.
        hosts: Places of the hosts, int64 ``[R]``.
        x: Rows by task, ``[T, N, D]``.
        y: Their labels, ``[T, N]``.
        tasks: Of the hosts, ``[E]``.
        lacking: Classes that are no answers, bool ``[E, C]``.
        host_param: Of the hosts, ``[E, …]``.
        seed_param: Of the seeds of this blueprint.
        alphas: Amplitudes ``[E]``.
        on: Whether a configuration has the seed, bool ``[Cfg, E]``.
        correct: Is written: right answers, bool ``[Cfg, E, N]``.
        loss: Is written: mean losses, ``[Cfg, E]``.
    """
    columns, units, units2, classes, features = widths
    outs = features * units
    param = np.empty(host_param.shape[1], np.float32)
    bare = np.empty((_SAMPLES, units), np.float32)
    grown = np.empty((_SAMPLES, units), np.float32)
    z2 = np.empty((_SAMPLES, units2), np.float32)
    logits = np.empty((_SAMPLES, classes), np.float32)
    out = np.empty((features, units), np.float32)
    losses = np.empty(_SAMPLES, np.float32)
    right = np.empty((2, _SAMPLES), np.bool_)
    for h in hosts:
        _turn(host_param[h], param, columns, units, units2)
        w1, b1, w2, b2, w3, b3 = _layers(param, columns, units, units2, classes)
        has_bare = False
        has_grown = False
        for c in range(len(on)):
            has_grown |= on[c, h]
            has_bare |= not on[c, h]
        if has_grown:
            gain = alphas[h] * np.float32(3) if kind < FIRST_FIXED else alphas[h]
            k = 0
            for i in range(features):
                for j in range(units):
                    out[i, j] = gain * seed_param[h, k]
                    k += 1
        totals = np.zeros(2, np.float64)
        number = x.shape[1]
        for first in range(0, number, _SAMPLES):
            last = min(first + _SAMPLES, number)
            n = last - first
            rows = x[tasks[h], first:last]
            labels = y[tasks[h], first:last]
            _fill(bare[:n], b1)
            add_product(rows, w1, bare[:n])
            if has_grown:
                copy(bare[:n], grown[:n])
                turned_rows = np.empty((columns, n), np.float32)
                transpose(rows, turned_rows)
                f = np.empty((features, n), np.float32)
                a = np.empty((layer_width(kind, units), n), np.float32)
                compute_features(kind, turned_rows, units, seed_param[h, outs:], f, a)
                add_turned_product(f, out, grown[:n])
            for turn in range(2):
                if not (has_grown if turn else has_bare):
                    continue
                z1 = grown[:n] if turn else bare[:n]
                _relu(z1)
                _fill(z2[:n], b2)
                add_product(z1, w2, z2[:n])
                _relu(z2[:n])
                dots(z2[:n], w3, logits[:n])
                _probabilities(logits[:n], b3, lacking[h], labels, losses, right[turn])
                for b in range(n):
                    totals[turn] += losses[b]
            for c in range(len(on)):
                turn = 1 if on[c, h] else 0
                for b in range(n):
                    correct[c, h, first + b] = right[turn, b]
        for c in range(len(on)):
            loss[c, h] = totals[1 if on[c, h] else 0] / number


@njit(**INNER)
def _layers(row, columns, units, units2, classes):
    """View the tensors of a host whose first two weights were turned."""
    first = columns * units
    second = first + units
    third = second + units * units2
    fourth = third + units2
    fifth = fourth + units2 * classes
    return (
        row[:first].reshape(columns, units),
        row[first:second],
        row[second:third].reshape(units, units2),
        row[third:fourth],
        row[fourth:fifth].reshape(classes, units2),
        row[fifth:],
    )


@njit(**INNER)
def _turn(row, turned, columns, units, units2):
    """Copy a row of a host; its first two weights become ``[inputs, outputs]``, as products are fastest."""
    copy(row, turned)
    first = columns * units
    second = first + units
    third = second + units * units2
    transpose(row[:first].reshape(units, columns), turned[:first].reshape(columns, units))
    transpose(row[second:third].reshape(units2, units), turned[second:third].reshape(units, units2))


@njit(**INNER)
def _turn_back(turned, row, columns, units, units2):
    _turn_same = columns * units
    first = _turn_same
    second = first + units
    third = second + units * units2
    copy(turned, row)
    transpose(turned[:first].reshape(columns, units), row[:first].reshape(units, columns))
    transpose(turned[second:third].reshape(units, units2), row[second:third].reshape(units2, units))


@njit(**INNER)
def _fill(z, bias):
    for b in range(len(z)):
        for j in range(len(bias)):
            z[b, j] = bias[j]


@njit(**INNER)
def _relu(z):
    """Cut at 0; NaN stays."""
    flat = z.reshape(-1)
    for i in range(len(flat)):
        flat[i] = _ZERO if flat[i] <= _ZERO else flat[i]


@njit(**INNER)
def _cut(grad, hidden, of_bias):
    """Pass a gradient through relu, and sum it for the bias."""
    for b in range(grad.shape[0]):
        for j in range(grad.shape[1]):
            value = _ZERO if hidden[b, j] <= _ZERO else grad[b, j]
            grad[b, j] = value
            of_bias[j] += value


@njit(**INNER)
def _probabilities(logits, bias, lacking, labels, losses, right):
    """Make logits ``[B, C]`` probabilities; write the losses in nats, and which answers are right."""
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
        # One number that is not finite makes their sum so.
        # (math.isfinite is a difference to itself, which is taken for 0.)
        right[b] = best == labels[b] and abs(total) < np.float32(np.inf)
        for c in range(classes):
            logits[b, c] -= largest
        losses[b] = -logits[b, labels[b]]
    flat = logits.reshape(-1)
    for i in range(len(flat)):
        flat[i] = exp(flat[i])
    for b in range(len(labels)):
        total = _ZERO
        for c in range(classes):
            total += logits[b, c]
        losses[b] += np.float32(math.log(total))
        for c in range(classes):
            logits[b, c] = _ZERO if lacking[c] else logits[b, c] / total


@njit(**INNER)
def _step(param, grad, mean, variance, step, rate, decay, clip, betas, moves):
    """Clip the gradient of a module and make a step of AdamW, unless it is frozen; tell the norm before clipping."""
    square = _ZERO
    for i in range(len(grad)):
        square += grad[i] * grad[i]
    norm = np.float32(math.sqrt(square))
    if not moves:
        return norm
    # NaN stays NaN.
    scale = np.float32(clip / (norm + _CLIP_EPS))
    scale = _ONE if scale > _ONE else scale
    beta1, beta2 = np.float32(betas[0]), np.float32(betas[1])
    rest1, rest2 = np.float32(1 - betas[0]), np.float32(1 - betas[1])
    length = np.float32(rate / (1 - betas[0] ** step))
    correction = np.float32(1 / math.sqrt(1 - betas[1] ** step))
    kept = np.float32(1 - rate * decay)
    for i in range(len(grad)):
        g = grad[i] * scale
        m = beta1 * mean[i] + rest1 * g
        v = beta2 * variance[i] + rest2 * g * g
        mean[i] = m
        variance[i] = v
        param[i] = param[i] * kept - length * m / (
            np.float32(math.sqrt(v)) * correction + _ADAM_EPS
        )
    return norm


with kept_by_source():
    train_hosts = njit(cache=True, **OPTIONS)(_train_hosts)
    evaluate_hosts = njit(cache=True, **OPTIONS)(_evaluate_hosts)
