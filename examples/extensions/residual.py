"""A host family of one's own: residual convolutions of constant width, grown with the blueprints of the cnn family.

cp examples/extensions/residual.py extensions/
simic run -S 'extensions=[residual]' -S 'train.host={family: residual, preset: baseline}'
"""

from functools import partial

from torch import Tensor, nn

from simic.growth.networks.family import Anatomy, host_family
from simic.params import Host

WIDTH, BLOCKS = 8, 3


class Stem(nn.Module):
    """Convolution with stride 2: [B, C, H, W] -> [B, WIDTH, H/2, W/2]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, WIDTH, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Residual(nn.Module):
    """x + conv(relu(GN(x))). No BatchNorm: running statistics cannot be stacked over a population."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, WIDTH)
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.norm(x).relu())


class Head(nn.Module):
    """Mean over the pixels, then linear."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((-2, -1)))


@host_family("residual", presets=("baseline",), seeds="cnn")
def residual(host: Host, input_shape: tuple[int, ...], classes: int) -> Anatomy:
    """A slot after the stem and after each block; every slot has the same shape."""
    channels, height, width = input_shape
    shape = (WIDTH, (height + 1) // 2, (width + 1) // 2)
    return Anatomy(
        segments=(partial(Stem, channels), *[Residual] * BLOCKS),
        head=partial(Head, classes),
        slot_shapes=(shape,) * (BLOCKS + 1),
        config=host,
    )
