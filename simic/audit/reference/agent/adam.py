"""Adam (Kingma, Ba 2015, arXiv 1412.6980) behind a clip of the gradient's norm (Pascanu et al. 2013)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

FIRST, SECOND = 0.9, 0.999  # decay of the moments


@dataclass(frozen=True)
class Optimized:
    """Weights with their first and second moments, by name, and how many steps were taken."""

    weights: Mapping[str, Tensor]
    first: Mapping[str, Tensor]
    second: Mapping[str, Tensor]
    steps: int

    def stepped(self, gradients: Mapping[str, Tensor], rate: float, eps: float, largest_norm: float) -> "Optimized":
        """One step on gradients of which the joint norm is at most ``largest_norm``."""
        shrink = max(1.0, norm(gradients) / largest_norm)
        steps = self.steps + 1
        weights, first, second = {}, {}, {}
        for name, weight in self.weights.items():
            gradient = gradients[name] / shrink
            first[name] = FIRST * self.first[name] + (1.0 - FIRST) * gradient
            second[name] = SECOND * self.second[name] + (1.0 - SECOND) * gradient**2
            mean = first[name] / (1.0 - FIRST**steps)
            deviation = torch.sqrt(second[name] / (1.0 - SECOND**steps))
            weights[name] = weight - rate * mean / (deviation + eps)
        return Optimized(weights, first, second, steps)


def norm(gradients: Mapping[str, Tensor]) -> float:
    """Of all gradients as one vector."""
    return math.sqrt(math.fsum(float((gradient**2).sum()) for gradient in gradients.values()))
