"""Initial weights of the policy as a hash of the parameter's name: equal on any machine, drawn from no generator.

Gains after facts of practice (Huang et al. 2022, "The 37 implementation details of PPO"): orthogonal with √2 where a
tanh follows, 0.01 for the policy's last layers (the first policy is nearly uniform), 1 for the value's. ½ for the core,
about the scale of torch's own start: at 1 a policy with memory learns slower and falls back (docs/experiments.md).
"""

import math
import zlib

import torch
from torch import Tensor, nn

from simic import rng

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0
CORE_GAIN = 0.5
FORGET_BIAS = 1.0  # on one of the two biases that are added, so 1 and not 2


def orthogonal(shape: tuple[int, int], gain: float, stream: Tensor) -> Tensor:
    """A matrix with orthonormal rows or columns (whichever are fewer) times ``gain``; Saxe et al. 2014."""
    tall = (max(shape), min(shape))
    q, r = torch.linalg.qr(rng.normal(stream, tall).double())
    q = q * r.diagonal().sign()  # makes the decomposition unique, hence the draw uniform
    return (gain * (q if shape == tall else q.t())).float()


@torch.no_grad()
def initialize(module: nn.Module, gains: dict[str, float], rng_seed: int) -> None:
    """Matrices orthogonal with the gain of the longest prefix of their name in ``gains``, each gate of a core by
    itself; gain 0 and vectors are 0, the scale of a LayerNorm is 1, and the forget gate of an LSTM starts open.
    """
    gated = {
        id(p): layer.hidden_size
        for layer in module.modules()
        if isinstance(layer, nn.RNNBase)
        for p in layer.parameters()
    }
    for name, parameter in module.named_parameters():
        gain = gains[max((prefix for prefix in gains if name.startswith(prefix)), key=len)]
        if parameter.ndim == 2 and gain:
            blocks = parameter.split(gated.get(id(parameter), parameter.shape[0]))
            for gate, block in enumerate(blocks):
                stream = rng.key(rng_seed, rng.Purpose.POLICY_INIT, zlib.crc32(name.encode()), gate)
                block.copy_(orthogonal((block.shape[0], block.shape[1]), gain, stream))
        else:
            parameter.zero_()
    for layer in module.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.weight.fill_(1.0)
        if isinstance(layer, nn.LSTM):
            forget = slice(layer.hidden_size, 2 * layer.hidden_size)  # gates: input, forget, cell, out
            layer.get_parameter("bias_ih_l0")[forget] = FORGET_BIAS
