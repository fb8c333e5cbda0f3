"""Multi-layer perceptrons over flattened images."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from simic.growth.networks.family import Anatomy, Shape, host_family
from simic.growth.networks.layers import Samplewise
from simic.params import Host


@dataclass(frozen=True)
class VectorPreset:
    """Widths of the layers; ``linear``: no nonlinearities, and it sees only the mean of the image over its rows."""

    widths: tuple[int, ...]
    linear: bool = False


# impaired: one narrow linear map of a blurred image (digits: 50 % alone, 59 % with an mlp_small in slot 0).
PRESETS = {
    "baseline": VectorPreset((64, 64, 64)),
    "deep": VectorPreset((64, 64, 64, 64, 64)),
    "impaired": VectorPreset((16, 16, 16), linear=True),
}


class LinearBlock(Samplewise):
    """Linear → ReLU (or linear alone); flattens an image, averaged over its rows if ``linear``; ``[B, …] → [B, D]``."""

    def __init__(self, features: int, width: int, linear: bool) -> None:
        super().__init__()
        self.blurred = linear
        self.linear = nn.Linear(features, width)
        self.activation = nn.Identity() if linear else nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if self.blurred and x.dim() > 2:
            x = x.mean(2)
        return self.activation(self.linear(x.flatten(1)))


@host_family("mlp", presets=tuple(PRESETS))
def mlp(host: Host, input_shape: Shape, classes: int) -> Anatomy:
    """One layer per slot, then a linear classifier."""
    preset = PRESETS[host.preset]
    widths = host.widths or preset.widths
    channels, height, width = input_shape
    inputs = (channels * width * (1 if preset.linear else height), *widths[:-1])
    segments = tuple(partial(LinearBlock, *sizes, preset.linear) for sizes in zip(inputs, widths, strict=True))
    config = host.model_copy(update={"widths": widths})
    return Anatomy(segments, partial(nn.Linear, widths[-1], classes), tuple((size,) for size in widths), config)
