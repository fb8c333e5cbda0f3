"""First weights, each a hash of its name: equal on any machine, and drawn from no generator."""

import math
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from simic import rng

# Gains after Huang et al. 2022 ("The 37 implementation details of PPO"): √2 where a tanh follows, 0.01 for the policy's
# last layers (the first policy is nearly uniform), 1 for the value's. The core starts as torch starts it, uniform in
# ±1/√H with its biases: orthogonal with gain 1 and an open forget gate, it learnt slower and fell back
# (docs/history/experiments.md).
HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0
# Of a transformer: queries, keys and values are three layers in one, each of gain 1; gates begin nearly closed, as with
# b_g in GTrXL (arXiv 1910.06764).
THREE_LAYERS_GAIN = math.sqrt(3.0)
CLOSED_GATE = 2.0
# The stream of a renamed parameter is that of its first name, so that old results can be repeated.
STREAM_NAMES = {"privileged.weight": "told.weight"}


def orthogonal(shape: tuple[int, int], gain: float, stream: Tensor) -> Tensor:
    """Draw a matrix with orthonormal rows or columns, whichever are fewer (Saxe et al. 2014, arXiv 1312.6120).

    Args:
        shape: Rows and columns.
        gain: Length of each of these rows or columns.
        stream: Key of the draw.
    """
    # QR of a tall matrix gives orthonormal columns; a wide matrix is the transpose of a tall one.
    tall = (max(shape), min(shape))
    q, r = torch.linalg.qr(rng.normal(stream, tall).double())
    q = q * r.diagonal().sign()  # makes the decomposition unique, hence the draw uniform
    return (gain * (q if shape == tall else q.t())).float()


@torch.no_grad()
def initialize(module: nn.Module, gains: Mapping[str, float | None], rng_seed: int) -> None:
    """Set all weights of a module.

    Args:
        module: Its matrices and convolutions become orthogonal, its vectors 0, the scales of its LayerNorms 1, and its
            recurrent layers uniform in ±1/√H.
        gains: Gain by prefix of a parameter's name, the longest of which counts; 0 makes a matrix 0, None changes
            nothing.
        rng_seed: Weights are a hash of it and of their names.
    """

    def gain_of(name: str) -> float | None:
        return gains[max((prefix for prefix in gains if name.startswith(prefix)), key=len)]

    # Weights and biases of recurrent layers have a bound in place of a gain.
    bounds = {}
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase):
            bounds |= dict.fromkeys(layer.parameters(), layer.hidden_size**-0.5)
    for name, parameter in module.named_parameters():
        gain = gain_of(name)
        if gain is None:
            continue
        stream = rng.key(
            rng_seed, rng.Purpose.POLICY_INIT, zlib.crc32(STREAM_NAMES.get(name, name).encode())
        )
        # By name: a module that is added changes no weight of another.
        if parameter in bounds:
            parameter.copy_(
                bounds[parameter] * (2 * rng.uniform(stream, tuple(parameter.shape)) - 1)
            )
            continue
        if parameter.ndim > 1 and gain:
            # A convolution is a matrix of its outputs and of all that a window holds.
            rows, columns = parameter.flatten(1).shape
            parameter.copy_(orthogonal((rows, columns), gain, stream).view_as(parameter))
        else:
            parameter.zero_()
    # Their scales are vectors and were zeroed with all others.
    for name, layer in module.named_modules():
        if isinstance(layer, nn.LayerNorm) and gain_of(name) is not None:
            layer.weight.fill_(1.0)
        elif isinstance(layer, nn.GRUCell) and gain_of(name) is not None:
            layer.bias_ih.chunk(3)[1].fill_(CLOSED_GATE)
