"""Generate planted tasks: data whose best growth decision is known because it was put there.

``tests/envs/test_planted.py`` plays it and its rivals in the real environment. A policy is graded on these tasks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from simic import durable
from simic.data.sources import Source
from simic.errors import SimicError
from simic.params import Host, Prepare
from simic.rng import Purpose, bits, key, normal

CELL_NOISE = 0.8  # of orientation; high and low are 2 apart


@dataclass(frozen=True)
class Planted:
    """A task, the host, training and budget that it is for, and the decision that beats all others then: a seed of
    ``blueprint`` in ``slot``, germinated in the first step and fossilized as soon as it may.
    """

    name: str
    host: Host
    param_budget: float
    batches_per_epoch: int
    batch_size: int
    optimizer: str
    learning_rate: float
    classes: int
    samples: int  # unless prepare.samples says otherwise
    slot: int
    blueprint: str
    generate: Callable[[int, int], tuple[Tensor, Tensor]]  # (rng_seed, samples) -> x, y

    @property
    def overrides(self) -> list[str]:
        """Return the task as overrides of params.yaml, ``KEY.PATH=VALUE``."""
        return [
            "prepare.task=synthetic",
            f"prepare.source={self.name}",
            f"train.host.family={self.host.family}",
            f"train.host.preset={self.host.preset}",
            f"train.host.widths={list(self.host.widths or ())}",
            f"train.batches_per_epoch={self.batches_per_epoch}",
            f"train.batch_size={self.batch_size}",
            f"train.host_optimizer.name={self.optimizer}",
            f"train.host_optimizer.learning_rate={self.learning_rate}",
            f"train.lifecycle.param_budget={self.param_budget}",
            "train.lifecycle.auto_advance=true",
        ]


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
    cells = 2.0 * high - 1.0 + CELL_NOISE * normal(key(rng_seed, Purpose.SYNTHETIC, 1, counter), (4, 4))
    return cells.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None], label


PLANTED = {
    task.name: task
    for task in (
        Planted(
            name="orientation",
            host=Host(family="cnn", preset="impaired", widths=(4, 8, 16)),
            param_budget=0.6,  # depthwise in slot 0, and no other seed that mixes neighbours
            batches_per_epoch=2,
            batch_size=64,
            optimizer="sgd",
            learning_rate=0.05,
            classes=2,
            samples=3000,
            slot=0,
            blueprint="depthwise",
            generate=orientation,
        ),
    )
}


def read_planted(name: str, params: Prepare, rng_seed: int) -> Source:
    """Generate a task's samples, as many as ``prepare.samples`` says; SimicError for an unknown name."""
    if name not in PLANTED:
        raise SimicError(f"prepare.source = {name!r}: must be a planted task: {', '.join(PLANTED)}")
    planted = PLANTED[name]
    x, y = planted.generate(rng_seed, params.samples or planted.samples)
    digest = durable.sha256_of(x.numpy().tobytes() + y.numpy().tobytes())
    return Source(f"planted: {name}", digest, "generated", x, y)
