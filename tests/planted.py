"""A task whose best growth decision is known because it was put there, registered as an extension registers one.

A seed of BLUEPRINT in SLOT, germinated in the first step and fossilized as soon as it may be, beats all other
decisions.
"""

from pathlib import Path

import torch
from torch import Tensor

from simic import durable
from simic.data.sources import Source
from simic.data.tasks import task
from simic.params import Prepare
from simic.rng import Purpose, bits, key, normal

CELL_NOISE = 0.8  # high and low are 2 apart
SAMPLES = 3000
SLOT, BLUEPRINT = 0, "depthwise"
OVERRIDES = (
    "prepare.task=planted",
    "train.host={family: cnn, preset: impaired, widths: [4, 8, 16]}",
    "train.batches_per_epoch=2",
    "train.batch_size=64",
    "train.host_optimizer.name=sgd",
    "train.host_optimizer.learning_rate=0.05",
    "train.lifecycle.param_budget=0.6",  # depthwise in slot 0, and no other seed that mixes neighbours
    "train.lifecycle.auto_advance=true",
)


def orientation(rng_seed: int, samples: int) -> tuple[Tensor, Tensor]:
    """Generate pairs of cells: ``x [N, 1, 8, 8]`` float32, ``y [N]``: 0 = horizontal, 1 = vertical.

    4 × 4 cells of 2 × 2 equal pixels, so that the first pooling loses nothing. Each block of 2 × 2 cells holds two high
    and two low values, high above or below low (0), or high left or right of low (1), by a fair coin per block; every
    cell has noise of its own. So the values in a block, their places forgotten, have one distribution for both labels,
    and blocks are independent: no map of single cells can tell, nor anything behind the second pooling, which forgets
    places within blocks. A 3 × 3 seed in slot 0 stands between the two and sees neighbours.
    """
    counter = torch.arange(samples)
    label = counter % 2
    coin = bits(key(rng_seed, Purpose.SYNTHETIC, 0, counter), (2, 2)) & 1  # one per block
    side = coin.repeat_interleave(2, 1).repeat_interleave(2, 2)
    place = torch.arange(4) % 2  # of a row or column within its block
    high = torch.where(label[:, None, None] == 0, place[:, None] == side, place == side)
    cells = (
        2.0 * high - 1.0 + CELL_NOISE * normal(key(rng_seed, Purpose.SYNTHETIC, 1, counter), (4, 4))
    )
    return cells.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None], label


@task("planted")
def read_planted(params: Prepare, rng_seed: int, data_dir: Path) -> Source:
    """Generate the samples, as many as ``prepare.samples`` says."""
    x, y = orientation(rng_seed, params.samples or SAMPLES)
    return Source(
        "planted", durable.sha256_of(x.numpy().tobytes() + y.numpy().tobytes()), "generated", x, y
    )
