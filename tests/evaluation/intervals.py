"""Simulations of which the truth is known, on scores spread as those of tasks are: how often an interval is wrong.

Of a third of the tasks the oracle gains 30 ± 10 points, of the others 0 ± 3.
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from simic.evaluation import gap, search

Values = NDArray[np.float64]


def headroom(generator: Generator, n: int) -> Values:
    """Return the oracle less the common schedule on n tasks."""
    return np.where(generator.random(n) < 1 / 3, generator.normal(30, 10, n), generator.normal(0, 3, n))


def wrong(instances: int, nulls: int, rng_seed: int = 1) -> float:
    """Return how often 0 lies outside the interval of a difference that is 0: 20 gained on a third, 10 lost."""
    generator = np.random.default_rng([rng_seed, instances])
    found = [gap.paired_difference(headroom(generator, instances) - 10, np.zeros(instances)) for _ in range(nulls)]
    return float(np.mean([each.low > 0 or each.high < 0 for each in found]))


def wrong_over_seeds(seeds: int, instances: int, nulls: int, spread: float, rng_seed: int = 1) -> float:
    """Return the same for a difference 0 over training seeds that differ by ``spread``, and by 8 on each task."""
    generator = np.random.default_rng([rng_seed, seeds, instances])
    hits = 0
    for _ in range(nulls):
        scores = headroom(generator, instances) - 10 + generator.normal(0, spread, (seeds, 1))
        found = gap.paired_difference(scores + generator.normal(0, 8, (seeds, instances)), np.zeros(instances))
        hits += found.low > 0 or found.high < 0
    return hits / nulls


def curse(tables: int, rng_seed: int = 1) -> dict[str, tuple[float, float]]:
    """Return the mean gap, with its standard error, of the oracle over a common choice where all choices are equal."""
    generator = np.random.default_rng([rng_seed, 11])
    gaps = {"chosen and scored on the same table": [], "chosen on one, scored on another": []}
    for _ in range(tables):
        chosen, scored = generator.normal(70, 5, (2, 40, 20))
        common = search.best_common(generator.normal(70, 5, (40, 20)))
        for name, table in zip(gaps, (chosen, scored), strict=True):
            oracle = (table * search.best_choices(chosen)).sum(axis=1)
            gaps[name].append(float((oracle - table[:, common]).mean()))
    return {name: (float(np.mean(each)), float(np.std(each, ddof=1) / np.sqrt(tables))) for name, each in gaps.items()}
