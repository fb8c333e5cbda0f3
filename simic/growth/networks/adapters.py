"""What adapts a convolutional host that is trained and frozen; shape = (C, H, W).

Without norms: what such a host has learned to read keeps its scale.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from simic.growth.networks.blueprints import blueprint
from simic.growth.networks.family import Shape
from simic.growth.networks.layers import Samplewise

LORA_RANK = 4  # maps have fewer channels than vectors


@blueprint("lora", "adapted_cnn", closing=("up.weight",))
class MapLowRank(Samplewise):
    """x + up(down x), both 1×1, up = 0: 8C parameters (arXiv 2106.09685)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.down = nn.Conv2d(shape[0], LORA_RANK, 1, bias=False)
        self.up = nn.Conv2d(LORA_RANK, shape[0], 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.down(x))


@blueprint("bottleneck", "adapted_cnn", closing=("up.weight",))
class MapBottleneck(Samplewise):
    """x + up(relu(down x)), both 1×1, up = 0, b = max(8, C/4): 2Cb parameters (arXiv 1902.00751)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        narrow = max(8, shape[0] // 4)
        self.down = nn.Conv2d(shape[0], narrow, 1, bias=False)
        self.up = nn.Conv2d(narrow, shape[0], 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(F.relu(self.down(x)))


@blueprint("conv", "adapted_cnn", closing=("conv.weight",))
class MapConv(Samplewise):
    """x + 3×3 x, the convolution 0: 9C² parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], shape[0], 3, padding=1, bias=False)
        nn.init.zeros_(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)
