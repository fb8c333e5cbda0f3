"""A small convolutional network for a picture: three layers and a linear one, as of Mnih et al. 2015 (Nature 518)."""

import torch
from torch import Tensor, nn

from simic.agent.spec import Image

LARGE = 36  # pixels on the shorter side, which the strides of Mnih et al. need
SMALLEST_MAP = 5  # pixels on the shorter side of the last map of a small picture


class ImageEncoder(nn.Module):
    """Turn the pixels of a picture into ``units`` numbers from 0 up.

    Args:
        image: Shape, place of the channels, and the value of a full pixel.
        units: Width of the result.
    """

    def __init__(self, image: Image, units: int) -> None:
        super().__init__()
        self.image = image
        self.units = units
        channels, *sides = image.shape
        if image.channels == "last":
            *sides, channels = image.shape
        # Large pictures lose pixels at once, small ones from layer to layer.
        if min(sides) >= LARGE:
            layers = [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)]
        else:
            layers = [nn.Conv2d(channels, 32, 3, 2, 1)]
            side = (min(sides) + 1) // 2
            while side > SMALLEST_MAP or len(layers) == 1:
                layers.append(nn.Conv2d(layers[-1].out_channels, 64, 3, 2, 1))
                side = (side + 1) // 2
        self.layers = nn.ModuleList(layers)
        # The size of the last map, by the arithmetic of strides.
        for layer in layers:
            sides = [
                (side + 2 * int(layer.padding[0]) - layer.kernel_size[0]) // layer.stride[0] + 1
                for side in sides
            ]
        self.last = nn.Linear(layers[-1].out_channels * sides[0] * sides[1], units)

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode pixels as observed, ``[..., pixels]``."""
        # Steps and environments become one batch, as convolutions want it.
        maps = pixels.reshape(-1, *self.image.shape).to(self.last.weight.dtype) / self.image.highest
        if self.image.channels == "last":
            maps = maps.movedim(-1, 1)
        for layer in self.layers:
            maps = torch.relu(layer(maps))
        encoded = torch.relu(self.last(maps.flatten(1)))
        return encoded.view(*pixels.shape[:-1], -1)
