"""Initial weights of the policy as a hash of the parameter's name: equal on any machine, drawn from no generator.

Gains after facts of practice (Huang et al. 2022, "The 37 implementation details of PPO"): orthogonal with √2 where a
tanh follows, 0.01 for the policy's last layers (the first policy is nearly uniform), 1 for the value's. The core starts
as torch starts it, uniform in ±1/√H with its biases: orthogonal with gain 1 and an open forget gate, it learnt slower
and fell back (docs/history/experiments.md).
"""

import math
import zlib

import torch
from torch import Tensor, nn

from simic import rng

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


def orthogonal(shape: tuple[int, int], gain: float, stream: Tensor) -> Tensor:
    """A matrix with orthonormal rows or columns (whichever are fewer) times ``gain``; Saxe et al. 2014."""
    tall = (max(shape), min(shape))
    q, r = torch.linalg.qr(rng.normal(stream, tall).double())
    q = q * r.diagonal().sign()  # makes the decomposition unique, hence the draw uniform
    return (gain * (q if shape == tall else q.t())).float()


@torch.no_grad()
def initialize(module: nn.Module, gains: dict[str, float], rng_seed: int) -> None:
    """Matrices orthogonal with the gain of the longest prefix of their name in ``gains``; gain 0 and vectors are 0, the
    scale of a LayerNorm is 1. Memories are uniform in ±1/√H.
    """
    cores = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]
    bounds = {id(parameter): layer.hidden_size**-0.5 for layer in cores for parameter in layer.parameters()}
    for name, parameter in module.named_parameters():
        stream = rng.key(rng_seed, rng.Purpose.POLICY_INIT, zlib.crc32(name.encode()))
        if id(parameter) in bounds:
            parameter.copy_(bounds[id(parameter)] * (2 * rng.uniform(stream, tuple(parameter.shape)) - 1))
            continue
        gain = gains[max((prefix for prefix in gains if name.startswith(prefix)), key=len)]
        if parameter.ndim == 2 and gain:
            parameter.copy_(orthogonal((parameter.shape[0], parameter.shape[1]), gain, stream))
        else:
            parameter.zero_()
    for layer in module.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.weight.fill_(1.0)
