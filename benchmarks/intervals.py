"""Which interval to trust: how often each is wrong about a truth that is known, on scores spread as those of tasks are.

Of a third of the tasks the oracle gains 30 ± 10 points, of the others 0 ± 3. The last lines are the power for a planted
effect, the worth of a search and the winner's curse.

    python -m benchmarks.intervals [--nulls 2000]
"""

import argparse
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from simic.evaluation import gap, search

Values = NDArray[np.float64]
Ends = tuple[float, float]
Pair = tuple[Values, Values]  # part and whole of a share; a difference is the part of a whole of ones

LEVEL = 0.05
EFFECT = 5.0
RESAMPLES = 1_000
# Standard deviation of headroom(): within the two groups, and between them.
SPREAD = float(np.sqrt(2 / 3 * 3**2 + 1 / 3 * 10**2 + 1 / 3 * 2 / 3 * 30**2))


def headroom(generator: Generator, n: int) -> Values:
    """Oracle − common of n tasks."""
    return np.where(generator.random(n) < 1 / 3, generator.normal(30, 10, n), generator.normal(0, 3, n))


def swaps(generator: Generator, n: int) -> Values:
    """Two policies that differ on a third of the tasks and are equal on average."""
    return headroom(generator, n) * np.where(generator.random(n) < 0.5, -1, 1)


def _solves(generator: Generator, n: int, share: float, price: float) -> Pair:
    """A policy that does as the oracle does on some tasks, and loses ``price`` everywhere."""
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


def ours(part: Values, whole: Values) -> dict[str, Ends]:
    """The interval of simic.evaluation.gap; none where the share is not defined."""
    nothing = np.zeros_like(whole)
    found = gap.paired_difference(part, nothing) if np.all(whole == 1) else gap.gap_closed(part, nothing, whole).share
    return {} if found is None else {"ours": (found.low, found.high)}


def bootstraps(part: Values, whole: Values) -> dict[str, Ends]:
    """The intervals of scipy's bootstrap, pairs resampled jointly."""

    def ratio(above: Values, below: Values, axis: int = -1) -> Values:
        return above.mean(axis=axis) / below.mean(axis=axis)

    result, ends = None, {}
    for method in ("percentile", "basic", "BCa"):
        result = stats.bootstrap(
            (part, whole), ratio, paired=True, vectorized=True, method=method, bootstrap_result=result,
            n_resamples=0 if result else RESAMPLES, rng=1,
        )  # fmt: skip
        ends[method] = (result.confidence_interval.low, result.confidence_interval.high)
    return ends


def wrong(case: str, instances: int, nulls: int, *, peers: bool, rng_seed: int = 1) -> dict[str, tuple[float, float]]:
    """Of each method, how often the truth lies below and how often above its interval."""
    truth, draw = (DIFFERENCES | SHARES)[case]
    generator = np.random.default_rng([rng_seed, instances])
    sides: dict[str, list[tuple[bool, bool]]] = {}
    for _ in range(nulls):
        part, whole = draw(generator, instances)
        found = ours(part, whole)
        if found and peers:
            found |= bootstraps(part, whole)
        for method, (low, high) in found.items():
            sides.setdefault(method, []).append((truth < low, truth > high))
    return {method: tuple(np.mean(found, axis=0).tolist()) for method, found in sides.items()}


def wrong_over_seeds(seeds: int, instances: int, nulls: int, spread: float, rng_seed: int = 1) -> float:
    """The same for a difference 0 over training seeds that differ by ``spread``, and by 8 on each task."""
    generator = np.random.default_rng([rng_seed, seeds, instances])
    hits = 0
    for _ in range(nulls):
        scores = headroom(generator, instances) - 10 + generator.normal(0, spread, (seeds, 1))
        found = gap.paired_difference(scores + generator.normal(0, 8, (seeds, instances)), np.zeros(instances))
        hits += found.low > 0 or found.high < 0
    return hits / nulls


def power(instances: int, effect: float = EFFECT) -> float:
    """Probability that an effect with the spread of headroom() is found, by the noncentral t."""
    shift, freedom = effect / SPREAD * np.sqrt(instances), instances - 1
    critical = stats.t.ppf(1 - LEVEL / 2, freedom)
    return float(stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(-critical, freedom, shift))


def found_effects(instances: int, trials: int, effect: float = EFFECT, rng_seed: int = 1) -> float:
    """How often the interval of a difference with that effect lies above 0."""
    generator = np.random.default_rng([rng_seed, instances, 7])
    draws = (headroom(generator, instances) - 10 + effect for _ in range(trials))
    return float(np.mean([gap.paired_difference(draw, np.zeros(instances)).low > 0 for draw in draws]))


def worth_wrong(k: int, instances: int, trials: int, rng_seed: int = 1) -> float:
    """How often the interval misses the worth of a policy that is a random search with k of 20 trainings."""
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
    """Mean gap, with its standard error, of the oracle over a common choice where all choices are equal."""
    generator = np.random.default_rng([rng_seed, 11])
    gaps = {"chosen and scored on the same table": [], "chosen on one, scored on another": []}
    for _ in range(tables):
        chosen, scored = generator.normal(70, 5, (2, 40, 20))
        common = search.best_common(generator.normal(70, 5, (40, 20)))
        for name, table in zip(gaps, (chosen, scored), strict=True):
            gaps[name].append(float((search.oracle(chosen, table) - table[:, common]).mean()))
    return {name: (float(np.mean(each)), float(np.std(each, ddof=1) / np.sqrt(tables))) for name, each in gaps.items()}


def main() -> None:
    """Print everything, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nulls", type=int, default=2000)
    nulls = parser.parse_args().nulls
    low, high = (100 * end / nulls for end in stats.binom.interval(0.95, nulls, LEVEL))
    print(
        f"{nulls} each; {low:.1f} to {high:.1f} % is the binomial interval of 5 %. In brackets: truth below, above.\n"
    )
    methods = ("ours", "percentile", "basic", "BCa")
    print("| truth | instances | " + " | ".join(methods) + " |\n|---|---" + "|---" * len(methods) + "|")
    for case in DIFFERENCES | SHARES:
        for instances in (10, 40, 60):
            found = wrong(case, instances, nulls, peers=True)
            cells = [f"{100 * sum(found[m]):.1f} ({100 * found[m][0]:.1f}, {100 * found[m][1]:.1f})" for m in methods]
            print(f"| {case} | {instances} | " + " | ".join(cells) + " |", flush=True)
    for seeds in (2, 3, 5):
        rates = [f"{100 * wrong_over_seeds(seeds, 40, nulls, spread):.1f}" for spread in (0.0, 2.0)]
        print(f"{seeds} training seeds, 40 instances, no spread of seeds and 2 points: {', '.join(rates)} % wrong")
    for instances in (40, 60, 80):
        said, found = power(instances), found_effects(instances, nulls)
        print(f"power for {EFFECT:.0f} points, {instances} instances: {100 * said:.1f} %, found {100 * found:.1f} %")
    for k in (1, 2, 4, 8, 16):
        missed = 100 * worth_wrong(k, 40, nulls)
        print(f"worth of random search with {k} of 20 trainings, 40 instances: {missed:.1f} % wrong")
    for name, (mean, error) in curse(nulls).items():
        print(f"oracle over common, all choices equal, {name}: {mean:+.3f} ± {error:.3f}")


if __name__ == "__main__":
    main()
