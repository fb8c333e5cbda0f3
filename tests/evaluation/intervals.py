"""Simulations of which the truth is known, on scores spread as those of tasks are: how often an interval is wrong.

Of a third of the tasks the oracle gains 30 ± 10 points, of the others 0 ± 3.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from simic.evaluation import gap, search

Values = NDArray[np.float64]
Pair = tuple[Values, Values]  # part and whole of a share; a difference is the part of a whole of ones

LEVEL = 0.05
EFFECT = 5.0
# Standard deviation of headroom(): within the two groups, and between them.
SPREAD = float(np.sqrt(2 / 3 * 3**2 + 1 / 3 * 10**2 + 1 / 3 * 2 / 3 * 30**2))


def headroom(generator: Generator, n: int) -> Values:
    """Return the oracle less the common schedule on n tasks."""
    return np.where(generator.random(n) < 1 / 3, generator.normal(30, 10, n), generator.normal(0, 3, n))


def swaps(generator: Generator, n: int) -> Values:
    """Return the difference of two policies that differ on a third of the tasks and are equal on average."""
    return headroom(generator, n) * np.where(generator.random(n) < 0.5, -1, 1)


def _solves(generator: Generator, n: int, share: float, price: float) -> Pair:
    """Return the gains of a policy that does as the oracle does on some tasks, and loses ``price`` everywhere."""
    whole = headroom(generator, n)
    return np.where(generator.random(n) < share, whole, 0.0) - price + generator.normal(0, 3, n), whole


# Name: the truth, and how to draw it.
DIFFERENCES: dict[str, tuple[float, Callable[[Generator, int], Pair]]] = {
    "difference 0: gains 20 on a third, loses 10": (0.0, lambda g, n: (headroom(g, n) - 10, np.ones(n))),
    "difference 0: swaps": (0.0, lambda g, n: (swaps(g, n), np.ones(n))),
    "difference 0: normal": (0.0, lambda g, n: (g.normal(0, 8, n), np.ones(n))),
}
SHARES: dict[str, tuple[float, Callable[[Generator, int], Pair]]] = {
    "share 0: solves 30 %, pays 3": (0.0, lambda g, n: _solves(g, n, 0.3, 3.0)),
    "share 0: swaps": (0.0, lambda g, n: (swaps(g, n), headroom(g, n))),
    "share 0.6: solves 60 %": (0.6, lambda g, n: _solves(g, n, 0.6, 0.0)),
}


def wrong(case: str, instances: int, nulls: int, rng_seed: int = 1) -> float:
    """Return how often the truth lies outside the interval, of the draws in which there is one."""
    truth, draw = (DIFFERENCES | SHARES)[case]
    generator = np.random.default_rng([rng_seed, instances])
    missed = []
    for _ in range(nulls):
        part, whole = draw(generator, instances)
        zero = np.zeros_like(whole)
        found = gap.paired_difference(part, zero) if np.all(whole == 1) else gap.gap_closed(part, zero, whole).share
        if found is not None:
            missed.append(truth < found.low or truth > found.high)
    return float(np.mean(missed))


def wrong_over_seeds(seeds: int, instances: int, nulls: int, spread: float, rng_seed: int = 1) -> float:
    """Return the same for a difference 0 over training seeds that differ by ``spread``, and by 8 on each task."""
    generator = np.random.default_rng([rng_seed, seeds, instances])
    hits = 0
    for _ in range(nulls):
        scores = headroom(generator, instances) - 10 + generator.normal(0, spread, (seeds, 1))
        found = gap.paired_difference(scores + generator.normal(0, 8, (seeds, instances)), np.zeros(instances))
        hits += found.low > 0 or found.high < 0
    return hits / nulls


def power(instances: int, effect: float = EFFECT) -> float:
    """Return the probability that an effect with the spread of headroom() is found, by the noncentral t."""
    shift, freedom = effect / SPREAD * np.sqrt(instances), instances - 1
    critical = stats.t.ppf(1 - LEVEL / 2, freedom)
    return float(stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(-critical, freedom, shift))


def found_effects(instances: int, trials: int, effect: float = EFFECT, rng_seed: int = 1) -> float:
    """Return how often the interval of a difference with that effect lies above 0."""
    generator = np.random.default_rng([rng_seed, instances, 7])
    draws = (headroom(generator, instances) - 10 + effect for _ in range(trials))
    return float(np.mean([gap.paired_difference(draw, np.zeros(instances)).low > 0 for draw in draws]))


def worth_wrong(k: int, instances: int, trials: int, rng_seed: int = 1) -> float:
    """Return how often the interval misses the worth of a policy that is a random search with k of 20 trainings."""
    generator = np.random.default_rng([rng_seed, instances, k])
    missed = 0
    for _ in range(trials):
        quality = generator.normal(0, 8, (instances, 20))
        val, test = (quality + generator.normal(0, 3, quality.shape) for _ in range(2))
        drawn = generator.random(quality.shape).argsort(axis=1)[:, :k]
        best = np.take_along_axis(drawn, np.take_along_axis(val, drawn, axis=1).argmax(axis=1)[:, None], axis=1)
        policy = np.take_along_axis(quality, best, axis=1)[:, 0] + generator.normal(0, 3, instances)
        found = search.search_worth(policy, search.random_search(val, test))
        # At its ends the interval is open: "< 1" holds every number below, "> 20" every one above.
        low = 0.0 if found.low.beyond == "<" else found.low.count
        missed += not low <= k <= (np.inf if found.high.beyond == ">" else found.high.count)
    return missed / trials


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
