"""The suite ``tables``: rows of up to 64 numbers, filled up with zeros, for hosts that are linear maps.

scikit-learn's bundled tables by class and feature subsets, and planted ones. The tables are small, so a split may hold
a row more than once, each time with other noise; each group of tasks and each split has rows of its own.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from simic import durable
from simic.data.sources import Source, checked, read_digits
from simic.data.suites.kinds import Draws, Problem, kind
from simic.data.suites.suites import TaskSuite, suite
from simic.data.synthetic import radius as planted_radius

WIDTH = 64
PIXELS = 64  # of a digit
BANDS = 6  # of the diabetes target, equally many rows in each: what 2 or 3 classes are made of
UCI = "CC BY 4.0 (UCI Machine Learning Repository, doi {})"
LICENCES = {
    "breast_cancer": UCI.format("10.24432/C5DW2B"),
    "wine": UCI.format("10.24432/C5PC7J"),
    "diabetes": "none stated (B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, Least Angle Regression, 2004)",
}

suite(
    TaskSuite(
        name="tables",
        held_out=("wine", "digits_grouped", "parity"),
        samples={"train": 512, "val": 256, "test": 512},
        overrides=(
            "train.host.family=mlp",
            "train.host.preset=baseline",
            "train.batch_size=32",
            "train.episode_steps=40",
            "train.lifecycle.max_seeds=1",
        ),
    )
)


def _read_table(name: str, data_dir: Path) -> Source:
    """One that scikit-learn bundles; a target that is a number is cut into bands."""
    if name == "digits":
        return read_digits()
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    if y.dtype.kind == "f":
        y = y.argsort(kind="stable").argsort() * BANDS // len(y)
    values, labels = np.ascontiguousarray(x, dtype="<f4"), np.ascontiguousarray(y, dtype="<i8")
    rows, targets = checked(f"scikit-learn {name}", values, labels)
    digest = durable.sha256_of(values.tobytes() + labels.tobytes())
    return Source(f"scikit-learn {name}", digest, LICENCES[name], rows, targets)


def _padded(x: Tensor) -> Tensor:
    """``[n, D]`` as ``[n, 1, 1, 64]``."""
    return F.pad(x, (0, WIDTH - x.shape[1]))[:, None, None]


def _rows(draws: Draws, name: str, groups: list[list[int]], features: list[int], high: float) -> Problem:
    """Some features of a table in noise of at most ``high`` times their spread; a class is a group of its labels."""
    noise = draws.number(0.0, high)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        source = draws.source(name, partial(_read_table, name))
        y = draws.labels(n, len(groups))
        wanted = torch.empty_like(y)
        for place, group in enumerate(groups):
            mine = torch.nonzero(y == place).flatten()
            wanted[mine] = torch.tensor(group)[draws.labels(len(mine), len(group))]
        values = source.x.flatten(1)[:, features]
        x = values[draws.of_pool(name, source.y, wanted)]
        return _padded(x + noise * values.std(0, correction=0) * draws.normal(*x.shape)), y

    return Problem(
        len(groups), {"labels": [[*group] for group in groups], "features": [*features], "noise": noise}, sample
    )


def _single(labels: list[int]) -> list[list[int]]:
    """Each a class of its own."""
    return [[label] for label in labels]


@kind("tables", "digits")
def digits(draws: Draws) -> Problem:
    """Some classes of handwritten digits by all 64 pixels: the host alone tells them."""
    return _rows(draws, "digits", _single(draws.subset(10, 3, 10)), [*range(PIXELS)], 0.5)


@kind("tables", "digits_few_pixels")
def digits_few_pixels(draws: Draws) -> Problem:
    """Some classes of digits by a few of their pixels."""
    return _rows(draws, "digits", _single(draws.subset(10, 3, 10)), draws.subset(PIXELS, 8, 24), 0.3)


@kind("tables", "digits_grouped")
def digits_grouped(draws: Draws) -> Problem:
    """The ten digits dealt into two or three groups at random: a class is no one place."""
    count, order = draws.whole(2, 3), draws.permutation(10).tolist()
    return _rows(draws, "digits", [sorted(order[k::count]) for k in range(count)], [*range(PIXELS)], 0.3)


@kind("tables", "cancer")
def cancer(draws: Draws) -> Problem:
    """Benign or malignant, by some of 30 measures of cell nuclei."""
    return _rows(draws, "breast_cancer", _single([0, 1]), draws.subset(30, 4, 30), 1.0)


@kind("tables", "wine")
def wine(draws: Draws) -> Problem:
    """Two or three growers by some of 13 chemical measures."""
    return _rows(draws, "wine", _single(draws.subset(3, 2, 3)), draws.subset(13, 4, 13), 0.5)


@kind("tables", "diabetes")
def diabetes(draws: Draws) -> Problem:
    """How far the disease went within a year, in two or three classes, by some of 10 measures."""
    count = draws.whole(2, 3)
    each = BANDS // count
    groups = [[*range(k * each, (k + 1) * each)] for k in range(count)]
    return _rows(draws, "diabetes", groups, draws.subset(10, 4, 10), 0.3)


# --- planted ---------------------------------------------------------------------------------------------------------


@kind("tables", "radius")
def radius(draws: Draws) -> Problem:
    """Which half of a row is the longer one (``synthetic.radius``), in noise, beside features that say nothing."""
    noise, irrelevant = draws.number(0.0, 0.3), draws.whole(0, 16)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        x, y = planted_radius(int(draws.integers(1 << 30)), n)
        x = x + noise * draws.normal(*x.shape)
        return _padded(torch.cat((x, draws.normal(n, irrelevant)), 1)), y

    return Problem(2, {"noise": noise, "irrelevant": irrelevant}, sample)


@kind("tables", "linear")
def linear(draws: Draws) -> Problem:
    """Classes are clouds around one centre each: the host alone tells them."""
    classes, features, distance = draws.whole(2, 6), draws.whole(8, 32), draws.number(0.4, 0.8)
    centres = distance * draws.normal(classes, features)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, classes)
        return _padded(centres[y] + draws.normal(n, features)), y

    return Problem(classes, {"classes": classes, "features": features, "distance": distance}, sample)


@kind("tables", "clusters")
def clusters(draws: Draws) -> Problem:
    """Each class is several clouds, those of all classes mixed up."""
    classes, clouds, features = draws.whole(2, 4), draws.whole(2, 4), draws.whole(4, 16)
    centres = 2.0 * draws.normal(classes, clouds, features)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, classes)
        return _padded(centres[y, draws.integers(clouds, n)] + draws.normal(n, features)), y

    return Problem(classes, {"classes": classes, "clouds": clouds, "features": features}, sample)


@kind("tables", "parity")
def parity(draws: Draws) -> Problem:
    """Whether two features have one sign, beside others that say nothing."""
    margin, irrelevant = draws.number(0.2, 1.0), draws.whole(0, 16)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, 2)
        first = 2 * draws.integers(2, n) - 1
        sign = torch.stack((first, first * (2 * y - 1)), 1)
        x = sign * (margin + draws.normal(n, 2).abs())
        return _padded(torch.cat((x, draws.normal(n, irrelevant)), 1)), y

    return Problem(2, {"margin": margin, "irrelevant": irrelevant}, sample)
