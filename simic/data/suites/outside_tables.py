"""Define the tables of the suite ``tables`` that were not made for it: scikit-learn's real ones, at their own widths,
and its generators.

Real tables are small, so a split may hold a row more than once, each time with other noise; no two splits of a task
share a row.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simic.data.sources import BANDS, checked
from simic.data.suites.kinds import Draws, Kind, Problem
from simic.data.suites.table_rules import COLUMNS

ROWS = 4096  # that a generator gives for an instance: enough for all splits
REAL = ("breast_cancer", "wine", "diabetes", "digits", "iris")

Parameters = dict[str, Any]
# Generators and the parameters that an instance draws for each.
GENERATED: dict[str, Callable[[Draws], Parameters]] = {
    "friedman1": lambda draws: {"n_features": 10, "noise": draws.number(0.0, 1.0)},
    "friedman2": lambda draws: {},
    "friedman3": lambda draws: {},
    "hastie": lambda draws: {},
    "gaussian_quantiles": lambda draws: {"n_features": COLUMNS, "n_classes": draws.whole(2, 4)},
    "moons": lambda draws: {"noise": draws.number(0.1, 0.3)},
    "circles": lambda draws: {"noise": draws.number(0.05, 0.15), "factor": draws.number(0.4, 0.7)},
    "classification": lambda draws: {
        "n_features": COLUMNS,
        "n_informative": draws.whole(4, 8),
        "n_classes": draws.whole(2, 4),
        "n_clusters_per_class": draws.whole(1, 3),
    },
    "blobs": lambda draws: {
        "n_features": COLUMNS,
        "centers": draws.whole(3, 6),
        "cluster_std": draws.number(4.0, 8.0),
    },
}


def _real(name: str, draws: Draws) -> Problem:
    """Show all columns of a table in a little noise: three to six classes of digits, two or three bands of diabetes,
    all classes of the others.
    """
    labels = draws.bundled(name).y
    classes = int(labels.max()) + 1
    if name == "diabetes":
        count = draws.whole(2, 3)
        groups = [[*range(BANDS)][k * BANDS // count : (k + 1) * BANDS // count] for k in range(count)]
    else:
        groups = [[label] for label in (draws.subset(classes, 3, 6) if name == "digits" else range(classes))]
    noise = draws.number(0.05, 0.2)  # of each column's deviation

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        source = draws.bundled(name)
        y = draws.labels(n, len(groups))
        values = source.x.flatten(1)
        x = values[draws.of_pool(name, source.y, draws.members(y, groups))]
        return (x + noise * values.std(0, correction=0) * draws.normal(*x.shape))[:, None, None], y

    return Problem(len(groups), {"labels": groups, "noise": noise}, sample)


# --- generators ------------------------------------------------------------------------------------------------------


def _generated(name: str, draws: Draws) -> Problem:
    """Draw one table of a generator; two columns get ten of noise beside them, and targets are cut at their median."""
    from sklearn import datasets

    seed, asked = draws.whole(0, 2**30), GENERATED[name](draws)
    generator = getattr(datasets, "make_hastie_10_2" if name == "hastie" else f"make_{name}")
    values, target, *_ = generator(n_samples=ROWS, random_state=seed, **asked)
    if name.startswith("friedman"):  # the target is a number
        labels = target.argsort(kind="stable").argsort() * 2 // ROWS
    else:
        labels = np.unique(target, return_inverse=True)[1]
    rows, targets = checked(f"scikit-learn {name}", values, labels)
    if rows.shape[1] == 2:
        rows = torch.cat((rows, draws.normal(ROWS, COLUMNS - 2)), 1)
    classes = int(targets.max()) + 1

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, classes)
        return rows[draws.of_pool(name, targets, y)][:, None, None], y

    return Problem(classes, {"random_state": seed, **asked}, sample)


KINDS: dict[str, Kind] = {name: partial(_real, name) for name in REAL}
KINDS |= {name: partial(_generated, name) for name in GENERATED}
