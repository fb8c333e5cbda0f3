"""A blueprint of one's own: one learnable factor per channel.

cp examples/extensions/scale.py extensions/ && simic run -S 'extensions=[scale]'
"""

import torch
from torch import Tensor, nn

from simic.growth.networks.blueprints import blueprint


@blueprint("scale", family="cnn")
class Scale(nn.Module):
    """x · w, w = 1: C parameters, no multiply-adds of matrices; the identity when it germinates."""

    def __init__(self, shape: tuple[int, ...]) -> None:  # (C, H, W), without the batch
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape[0], 1, 1))

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, C, H, W]
        return x * self.weight
