"""Choose sets of modules on the suite ``together``: by trees that know looks, and by trying within one training.

Curves ``val`` are validation accuracy ``[T, S, epochs]`` of S sets on T tasks; ``order`` are sets from the most
promising one on, ``[T, S]``. A set that is trained on goes on where it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor

EPOCHS = 24
FOLDS = 4
# Models whose predictions are averaged.
MODELS = 3
# How many go on, and for how many epochs each, before one is left.
HALVINGS = [
    ((first, epochs), (second, more))
    for first, epochs, second, more in product((2, 3, 4, 6, 8), (1, 2, 3, 4), (1, 2), (0, 2, 4))
    if second < first and (more > 0) == (second > 1) and first * epochs + second * more < 20
]
Values = NDArray[np.float64]
Integers = NDArray[np.int64]


# --- trees that know looks ---


def features_of(
    looks: Values,
    sets: Sequence[tuple[int, ...]],
) -> Values:
    """Describe sets of at most two modules on each task, ``[T, S, F]``.

    Args:
        looks: at pairs of P modules, and in the last column at single ones, ``[T, P, P + 1]``.
        sets: numbers of their modules.
    """
    pairs, singles = looks[:, :, :-1], looks[:, :, -1]
    best_pair, best_single = pairs.max((1, 2)), singles.max(1)
    rows = []
    for members in sets:
        # A module that is missing says nothing.
        alone = np.zeros((len(looks), 2))
        partner = np.zeros((len(looks), 2))
        alone[:, : len(members)] = singles[:, list(members)]
        partner[:, : len(members)] = pairs[:, list(members)].max(2)
        pair = pairs[:, members[0], members[-1]] if members else np.zeros(len(looks))
        present = np.zeros(singles.shape)
        present[:, list(members)] = 1.0
        size = np.full(len(looks), len(members))
        columns = [
            pair,
            best_pair - pair,
            best_pair,
            best_single,
            best_single - alone.max(1),
            *np.sort(alone).T,
            *np.sort(partner).T,
            size,
        ]
        rows.append(np.concatenate((np.stack(columns, 1), present, singles), 1))
    return np.stack(rows, 1)


@dataclass(frozen=True)
class Chooser:
    """Predicts how far each set is above the mean of all sets on a task."""

    models: list[HistGradientBoostingRegressor]

    @classmethod
    def fit(
        cls,
        features: Values,
        scores: Values,
    ) -> "Chooser":
        """Fit to features ``[T, S, F]`` and scores ``[T, S]``."""
        targets = _gains(scores).reshape(-1)
        models = [_trees(400, 31, seed) for seed in range(MODELS)]
        return cls([model.fit(_flat(features), targets) for model in models])

    def expected(self, features: Values) -> Values:
        """Predict gains, ``[T, S]``."""
        predicted = [model.predict(_flat(features)) for model in self.models]
        return np.mean(predicted, 0).reshape(features.shape[:2])


def across(
    groups: Sequence[str],
    features: Values,
    scores: Values,
    query_groups: Sequence[str],
    queries: Values,
) -> Values:
    """Predict gains ``[T, S]`` on other tasks, each by a chooser that saw no task of its group.

    Args:
        groups: of the tasks to learn from.
        features: of their sets, ``[N, S, F]``.
        scores: what these reached, ``[N, S]``.
        query_groups: of the other tasks.
        queries: features of their sets, ``[T, S, F]``.
    """
    names = sorted(set(groups))
    fold, query_fold = (
        np.array([names.index(name) % FOLDS for name in column])
        for column in (groups, query_groups)
    )
    gains = np.empty(queries.shape[:2])
    for number in range(FOLDS):
        inside = fold != number
        chooser = Chooser.fit(features[inside], scores[inside])
        rows = query_fold == number
        gains[rows] = chooser.expected(queries[rows])
    return gains


def _trees(
    iterations: int,
    leaves: int,
    seed: int,
) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(
        max_iter=iterations, max_leaf_nodes=leaves, learning_rate=0.05, random_state=seed
    )


def _gains(scores: Values) -> Values:
    return scores - scores.mean(1, keepdims=True)


def _flat(rows: Values) -> Values:
    return rows.reshape(-1, rows.shape[-1])


# --- trying within one training ---


def halve(
    plan: Sequence[tuple[int, int]], order: Integers, val: Values
) -> tuple[Integers, Integers]:
    """Halve candidates (Jamieson and Talwalkar 2016, arXiv 1502.07943).

    Args:
        plan: how many go on, and for how many epochs each; the best one gets the rest.
        order: sets.
        val: their curves.

    Returns:
        The set that is left and the epochs that it had, both ``[T]``.
    """
    candidates = order[:, : plan[0][0]]
    cost = trained = 0
    for count, epochs in (*plan, (1, 0)):
        if trained:
            scores = np.take_along_axis(val[:, :, trained - 1], candidates, 1)
            best = np.argsort(-scores, 1, kind="stable")[:, :count]
            candidates = np.take_along_axis(candidates, best, 1)
        trained += epochs
        cost += count * epochs
    return candidates[:, 0], np.full(len(order), trained + EPOCHS - cost)


@dataclass(frozen=True)
class Improvement:
    """Plays expected improvement in shares of a training (Swersky et al. 2014, arXiv 1406.3896).

    ``models[n]`` predicts the gain of a set that has had n shares; ``deviations[n]`` says how far off that is on tasks
    it does not know; ``delay[e]`` is what stopping after e epochs costs.
    """

    models: list[HistGradientBoostingRegressor]
    deviations: Values
    delay: Values
    share: int = 2  # epochs
    candidates: int = 8

    @classmethod
    def fit(
        cls,
        expected: Values,
        val: Values,
        scores: Values,
    ) -> "Improvement":
        """Learn on tasks of training.

        Args:
            expected: by a chooser ``[T, S, …]``: gains, then what says how hard a task is.
            val: curves.
            scores: what sets reached, ``[T, S]``.
        """
        # How far off a prediction is, is measured on tasks that it was not fitted to.
        targets = _gains(scores)
        half = len(expected) // 2
        models, deviations = [], []
        for shares in range(EPOCHS // cls.share):
            rows = cls._rows(expected, val, shares)
            first = _trees(100, 8, 0).fit(_flat(rows[:half]), targets[:half].reshape(-1))
            errors = targets[half:].reshape(-1) - first.predict(_flat(rows[half:]))
            deviations.append(errors.std())
            models.append(_trees(100, 8, 0).fit(_flat(rows), targets.reshape(-1)))
        # What the best set of a task loses by fewer epochs.
        best = np.take_along_axis(val, scores.argmax(1)[:, None, None], 1)[:, 0]
        lost = (best[:, -1:] - best).mean(0)
        delay = np.maximum.accumulate(np.append(2 * lost[0], lost)[::-1])[::-1]
        return cls(models, np.array([*deviations, deviations[-1]]), delay)

    @classmethod
    def _rows(
        cls,
        expected: Values,
        val: Values,
        shares: int,
    ) -> Values:
        """Describe sets after so many shares."""
        curve = val[..., : cls.share * shares]
        columns = [*np.moveaxis(expected, -1, 0)]
        if shares:
            columns += [curve[..., -1], curve[..., -cls.share :].mean(-1), curve.max(-1)]
        return np.stack(columns, -1)

    def play(
        self,
        expected: Values,
        val: Values,
    ) -> tuple[int, int]:
        """Spend one training on a task; give the set and its epochs.

        Args:
            expected: as of ``fit``, ``[S, …]``.
            val: curves ``[S, epochs]``.
        """
        candidates = np.argsort(-expected[:, 0])[: self.candidates]
        expected, val = expected[candidates], val[candidates]
        shares = np.zeros(len(candidates), np.int64)
        means = self._means(expected, val, shares)
        for left in range(EPOCHS // self.share, 0, -1):
            # What each set reaches with all that is left, and what another share of it tells beside the best.
            values = means - self.delay[self.share * (shares + left)]
            best = int(values.argmax())
            variances = self.deviations[shares] ** 2 - self.deviations[shares + 1] ** 2
            spread = np.sqrt(np.maximum(variances, 0.0)) + 1e-9
            z = (values - values[best]) / spread
            gain = spread * (z * norm.cdf(z) + norm.pdf(z))
            # A share of another set is taken from the best one.
            end = self.share * (int(shares[best]) + left)
            gain[best] = self.delay[end - self.share] - self.delay[end]
            chosen = int(gain.argmax())
            shares[chosen] += 1
            means[chosen] = self._mean(expected[chosen], val[chosen], shares[chosen])
        # Only what was trained can be kept.
        values = np.where(shares > 0, means - self.delay[self.share * shares], -np.inf)
        best = int(values.argmax())
        return int(candidates[best]), self.share * int(shares[best])

    def _means(
        self,
        expected: Values,
        val: Values,
        shares: Integers,
    ) -> Values:
        return np.array([self._mean(*row) for row in zip(expected, val, shares, strict=True)])

    def _mean(
        self,
        expected: Values,
        val: Values,
        shares: int,
    ) -> float:
        number = min(int(shares), len(self.models) - 1)
        return float(self.models[number].predict(self._rows(expected, val, number)[None])[0])
