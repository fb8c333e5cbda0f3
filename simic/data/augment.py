"""Augmentation of image batches on the device, a pure function of what the batch is for."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from simic.rng import Purpose, bits, key

PADDING = 4  # zeros around an image before a crop of its own size, as usual for CIFAR-10 (He et al. 2015)


def augment_stream(rng_seed: int, iteration: int, env_ids: Tensor, step: int, batch: int) -> Tensor:
    """The keys ``[E]`` of one batch of each host."""
    return key(rng_seed, Purpose.AUGMENT, iteration, env_ids, step, batch, device=env_ids.device)


@dataclass(frozen=True)
class CropFlip:
    """``crop_flip`` of every minibatch of one epoch of some hosts."""

    rng_seed: int
    iteration: int
    env_ids: Tensor
    step: int

    def __call__(self, x: Tensor, batch: int, hosts: slice | NDArray[np.int64]) -> Tensor:
        env_ids = self.env_ids[hosts]
        return crop_flip(x, augment_stream(self.rng_seed, self.iteration, env_ids, self.step, batch))

    def of(self, hosts: slice | NDArray[np.int64]) -> Self:
        """The same for some hosts alone."""
        return replace(self, env_ids=self.env_ids[hosts])


def crop_flip(x: Tensor, stream: Tensor) -> Tensor:
    """Each image of ``x [E, B, C, H, W]`` shifted by -4…4 pixels in each direction, what comes in from outside being 0
    (the mean, as images are standardised), and mirrored left to right or not; ``stream [E]`` int64 keys. Same shape.

    A host's draws depend on its key and the position in its batch alone, so any grouping of hosts sees the same images.
    """
    envs, batch, channels, height, width = x.shape
    draws = bits(stream, (batch, 3)).reshape(envs * batch, 3) & 0x7FFFFFFF
    shift = draws[:, :2] % (2 * PADDING + 1)  # of 2³¹ values, none is likelier than another by more than 1e-8
    mirrored = (draws[:, 2:] & 1) == 1
    column = torch.arange(width, device=x.device)
    columns = torch.where(mirrored, column.flip(0), column) + shift[:, 1:]
    rows = torch.arange(height, device=x.device) + shift[:, :1]
    padded = F.pad(x.reshape(envs * batch, channels, height, width), (PADDING,) * 4)
    image = torch.arange(envs * batch, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]].reshape(x.shape)
