"""Alignment of untrained seeds with the labels of a task, one seed and one task after the other."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from simic.certify import streams
from simic.certify.modules import FITTED_ROWS, Part

ROWS = 1024  # the first of the training split, in two halves


def alignments(parts: Sequence[Part], x: Tensor, y: Tensor) -> list[float]:
    """Return the agreement of B's gradients on two halves of the rows, with the labels as the error, for each seed;
    scaled so that the largest is ±1. All 0 where seeds do not read the sample.
    """
    if not all(part.reads_sample for part in parts):
        return [0.0] * len(parts)
    agreements = [_agreement(part, kind, x[:ROWS], y[:ROWS]) for kind, part in enumerate(parts)]
    largest = max(abs(value) for value in agreements)
    return [value / largest if largest else 0.0 for value in agreements]


def _agreement(part: Part, kind: int, x: Tensor, y: Tensor) -> float:
    values = part.draw(streams.key(0, streams.ALIGNMENT, kind))
    if part.fit is not None:
        values |= part.fit(x[:FITTED_ROWS].flatten(1))
    for name in part.closing:
        values[name].requires_grad_()
    middle = (len(y) + 1) // 2
    first, second = (_slopes(part, values, x[rows], y[rows]) for rows in (slice(middle), slice(middle, None)))
    return float(first @ second)


def _slopes(part: Part, values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the mean of output times label (class c at hidden unit c) less the mean label."""
    out = part.run(values, x)
    label = F.one_hot(y % out.shape[1], out.shape[1]).to(out.dtype)
    agreement = (out * (label - label.mean(dim=0))).sum() / len(y)
    slopes = torch.autograd.grad(agreement, [values[name] for name in part.closing])
    return torch.cat([slope.flatten() for slope in slopes])
