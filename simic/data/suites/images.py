"""The suite ``images``: MNIST, Fashion-MNIST and CIFAR-10 in grey at 16 × 16, class subsets and corruptions.

The files are those of the tasks of these names (``simic.data.idx``, ``simic.data.cifar``); who has one set alone names
its kinds in ``prepare.suite``.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor
from torch.nn import functional as F

from simic.data.cifar import read_cifar10
from simic.data.idx import read_mnist_like
from simic.data.sources import Source
from simic.data.suites.kinds import Draws, Problem, kind
from simic.data.suites.suites import TaskSuite, suite

SIZE = 16
CLASSES = 10
FEWEST = 5  # classes of a task: the 10,000 images of MNIST's t10k files then last without using one twice
READERS: dict[str, Callable[[Path], Source]] = {
    "mnist": partial(read_mnist_like, "mnist"),
    "fashion_mnist": partial(read_mnist_like, "fashion_mnist"),
    "cifar10": read_cifar10,
}
Corruption = Callable[[Draws, Tensor], Tensor]  # of images [n, 1, 16, 16], 0 … 1

suite(
    TaskSuite(
        name="images",
        held_out=("mnist_negative", "fashion_mnist_occluded", "cifar10_noisy"),
        samples={"train": 512, "val": 128, "test": 256},
        overrides=(
            "train.host.family=cnn",
            "train.host.preset=impaired",
            "train.episode_steps=40",
            "train.lifecycle.max_seeds=1",
        ),
    )
)


def _images(draws: Draws, name: str, corrupt: Corruption | None = None, **parameters: JsonValue) -> Problem:
    """Some classes of a set, each image corrupted by draws of its own."""
    chosen = draws.subset(CLASSES, FEWEST, CLASSES)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        source = draws.source(name, READERS[name])
        y = draws.labels(n, len(chosen))
        pixels = source.x[draws.of_pool(name, source.y, torch.tensor(chosen)[y])]
        x = F.adaptive_avg_pool2d(pixels.float().mean(1, keepdim=True) / 255.0, SIZE)
        return corrupt(draws, x) if corrupt else x, y

    return Problem(len(chosen), {"labels": [*chosen], **parameters}, sample)


def _noisy(draws: Draws, name: str) -> Problem:
    noise = draws.number(0.1, 0.4)
    return _images(draws, name, lambda draws, x: x + noise * draws.normal(*x.shape), noise=noise)


def _occluded(draws: Draws, name: str) -> Problem:
    """A black square hides a part, anywhere."""
    side = draws.whole(4, 8)

    def corrupt(draws: Draws, x: Tensor) -> Tensor:
        at = draws.integers(SIZE - side + 1, 2, len(x), 1)
        rows, columns = ((torch.arange(SIZE) >= start) & (torch.arange(SIZE) < start + side) for start in at)
        return x.masked_fill((rows[:, :, None] & columns[:, None])[:, None], 0.0)

    return _images(draws, name, corrupt, side=side)


def _negative(draws: Draws, name: str) -> Problem:
    """Half of them white on black: brightness says nothing."""
    return _images(draws, name, lambda draws, x: (2.0 * draws.integers(2, len(x), 1, 1, 1) - 1.0) * (x - 0.5))


@kind("images", "mnist")
def mnist(draws: Draws) -> Problem:
    """Handwritten digits."""
    return _images(draws, "mnist")


@kind("images", "mnist_noisy")
def mnist_noisy(draws: Draws) -> Problem:
    """Handwritten digits in noise."""
    return _noisy(draws, "mnist")


@kind("images", "mnist_occluded")
def mnist_occluded(draws: Draws) -> Problem:
    """Handwritten digits of which a square is hidden."""
    return _occluded(draws, "mnist")


@kind("images", "mnist_negative")
def mnist_negative(draws: Draws) -> Problem:
    """Handwritten digits, half of them negatives."""
    return _negative(draws, "mnist")


@kind("images", "fashion_mnist")
def fashion_mnist(draws: Draws) -> Problem:
    """Pieces of clothing."""
    return _images(draws, "fashion_mnist")


@kind("images", "fashion_mnist_noisy")
def fashion_mnist_noisy(draws: Draws) -> Problem:
    """Pieces of clothing in noise."""
    return _noisy(draws, "fashion_mnist")


@kind("images", "fashion_mnist_occluded")
def fashion_mnist_occluded(draws: Draws) -> Problem:
    """Pieces of clothing of which a square is hidden."""
    return _occluded(draws, "fashion_mnist")


@kind("images", "cifar10")
def cifar10(draws: Draws) -> Problem:
    """Animals and vehicles."""
    return _images(draws, "cifar10")


@kind("images", "cifar10_noisy")
def cifar10_noisy(draws: Draws) -> Problem:
    """Animals and vehicles in noise."""
    return _noisy(draws, "cifar10")
