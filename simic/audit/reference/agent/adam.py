"""Adam (Kingma, Ba 2015, arXiv 1412.6980) behind a clip of the gradient's norm (Pascanu et al. 2013)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

FIRST, SECOND = 0.9, 0.999  # decay of the moments


Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """Learning rate, what keeps a division finite, and the largest norm of all gradients together."""

    rate: float
    eps: float
    largest_norm: float


@dataclass(frozen=True)
class Optimized:
    """Weights with their first and second moments, by name, and how many steps were taken."""

    weights: Tensors
    first: Tensors
    second: Tensors
    steps: int

    def stepped(self, gradients: Tensors, length: float, settings: Rule) -> "Optimized":
        """One step on gradients whose ``norm`` is that ``length``, or on shorter ones where it is too large."""
        shrink = max(1.0, length / settings.largest_norm)
        first, second = {}, {}
        for name, gradient in gradients.items():
            first[name] = FIRST * self.first[name] + (1.0 - FIRST) * gradient / shrink
            second[name] = SECOND * self.second[name] + (1.0 - SECOND) * (gradient / shrink) ** 2
        return self.moved(first, second, settings)

    def moved(self, first: Tensors, second: Tensors, settings: Rule) -> "Optimized":
        """The step that follows from these moments."""
        steps = self.steps + 1
        weights = {}
        for name, weight in self.weights.items():
            mean = first[name] / (1.0 - FIRST**steps)
            deviation = torch.sqrt(second[name] / (1.0 - SECOND**steps))
            weights[name] = weight - settings.rate * mean / (deviation + settings.eps)
        return Optimized(weights, first, second, steps)


def norm(gradients: Tensors) -> float:
    """Of all gradients as one vector."""
    return math.sqrt(math.fsum(float((gradient**2).sum()) for gradient in gradients.values()))
