"""Multi-layer perceptrons over flattened images."""

import math
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from simic.growth.networks.family import Anatomy, Shape, host_family
from simic.growth.networks.layers import Samplewise
from simic.params import Host


@dataclass(frozen=True)
class VectorPreset:
    """Widths of the layers."""

    widths: tuple[int, ...]


PRESETS = {
    "baseline": VectorPreset((64, 64, 64)),
    "deep": VectorPreset((64, 64, 64, 64, 64)),
}


class LinearBlock(Samplewise):
    """Linear → ReLU of a flattened image, ``[B, …] → [B, D]``."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, width)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x.flatten(1)))


@host_family("mlp", presets=tuple(PRESETS))
def mlp(host: Host, input_shape: Shape, classes: int) -> Anatomy:
    """One layer per slot, then a linear classifier."""
    widths = host.widths or PRESETS[host.preset].widths
    inputs = (math.prod(input_shape), *widths[:-1])
    segments = tuple(partial(LinearBlock, *sizes) for sizes in zip(inputs, widths, strict=True))
    config = host.model_copy(update={"widths": widths})
    return Anatomy(segments, partial(nn.Linear, widths[-1], classes), tuple((size,) for size in widths), config)
