"""Train supervised choosers: extra trees predict from a task's alignments what every opening reaches on it.

Openings are then tried in the predicted order as a hand rule does it; for how long and what is kept is tuned on tasks
that the trees did not learn from. It answers: would a classifier do what the controller does?
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor
from torch import Tensor

from benchmarks.tuning import Ground, grown_alone
from simic import rng
from simic.agent.spec import Observation
from simic.envs.growth_env import GrowthEnv
from simic.envs.observations import alignment
from simic.envs.play import Episode
from simic.errors import SimicError
from simic.evaluation.rules import ByLength, HandRule, HandRules, Opening, possible_openings
from simic.evaluation.scoring import ROWS_AT_ONCE
from simic.params import Lifecycle, Params
from simic.progress import Progress

TRAININGS = 9000  # of hosts, each opening on each of some tasks
TUNING_HOSTS = 128  # on other tasks
# epochs, points
PATIENCE = (1, 2, 3)
THRESHOLDS = (1.0, 2.0, 4.0)
RETURNING = (1, 2, 3)  # tries
LEAVES = (1, 2, 4, 8, 16)  # least rows of a leaf
FOLDS = 4
TREES = 200

Table = NDArray[np.float64]
Folds = NDArray[np.int64]


@dataclass(frozen=True)
class Chooser:
    """For episodes of so many epochs; the model predicts scores of openings less their mean."""

    epochs: int
    leaf: int
    model: ExtraTreesRegressor
    rule: HandRule

    def __str__(self) -> str:
        rest = (
            "then the best again"
            if self.rule.threshold is None
            else f"keep above {self.rule.threshold:g} points"
        )
        most = f"at most {self.rule.tries}, " if self.rule.tries else ""
        return f"leaves of {self.leaf}, {most}{self.rule.patience} epoch(s) each, {rest}"


class Ordered(HandRules):
    """Plays rules on openings in the order of what a model expects of them."""

    def __init__(
        self, lifecycle: Lifecycle, rules: Sequence[HandRule], model: ExtraTreesRegressor
    ) -> None:
        super().__init__(lifecycle, rules)
        self.model = model

    def start(self, episode: Episode) -> None:
        super().start(episode)
        self.ordered = False

    def _put_in_order(self, observation: Observation) -> None:
        features = (
            alignment(observation.features, observation.masks["blueprint"].shape[-1])
            .double()
            .cpu()
            .numpy()
        )
        places = (
            torch.as_tensor(self.model.predict(features))
            .argsort(dim=1, descending=True)
            .to(self.order.device)
        )
        self.order = self.order.gather(1, places[..., None].expand_as(self.order))
        self.ordered = True


def learn(
    params: Params,
    prepared: Path,
    epochs: Sequence[int],
    device: torch.device,
    progress: Progress,
    rows: int = ROWS_AT_ONCE,
) -> tuple[list[Chooser], int]:
    """Return a chooser for each number of epochs, and how many host trainings they cost together."""
    ground = Ground.open(params, prepared, device, epochs, rows)
    with closing(ground.env) as env:
        openings = possible_openings(env)
        hosts = torch.arange(max(1, TRAININGS // len(openings)))
        scores, _ = grown_alone(ground, openings, hosts, progress)
        features = ground.aligned(hosts).double().numpy()
        folds = folds_of(hosts, len(ground.tasks))
        fitted = [fit(features, of_length.double().numpy(), folds) for of_length in scores]
        choosers = [
            _tuned(ground, openings, *fit_of, k, len(hosts), progress)
            for k, fit_of in enumerate(fitted)
        ]
    return choosers, ground.trainings


def actor(env: GrowthEnv, choosers: Sequence[Chooser]) -> ByLength:
    return ByLength(
        {
            chooser.epochs: Ordered(env.train.lifecycle, [chooser.rule], chooser.model)
            for chooser in choosers
        }
    )


def trees(leaf: int, features: Table, gains: Table) -> ExtraTreesRegressor:
    """Return trees fitted to ``gains [H, P]``."""
    return ExtraTreesRegressor(n_estimators=TREES, min_samples_leaf=leaf, random_state=0).fit(
        features, gains
    )


def folds_of(hosts: Tensor, tasks: int) -> Folds:
    """Return a fold for each host ``[H]``: hosts of one task share it, and no kind of task is all in one."""
    groups = hosts % tasks if tasks > 1 else hosts
    return (
        rng.permutation(rng.key(0, rng.Purpose.SUBSAMPLE), int(groups.max()) + 1)[groups] % FOLDS
    ).numpy()


def chosen_gain(leaf: int, features: Table, gains: Table, folds: Folds) -> float:
    """Return the mean of ``gains [H, P]`` at the openings that models choose for a fold ``[H]`` they have not met."""
    predicted = np.empty(len(folds))
    for fold in np.unique(folds):
        inside = folds != fold
        outside = folds == fold
        if not inside.any():
            raise SimicError(
                "chooser: its hosts are all of one fold: it needs more tasks of training, or more hosts"
            )
        best = (
            trees(leaf, features[inside], gains[inside]).predict(features[outside]).argmax(axis=1)
        )
        predicted[outside] = gains[outside][np.arange(len(best)), best]
    return float(predicted.mean())


def fit(features: Table, scores: Table, folds: Folds) -> tuple[int, ExtraTreesRegressor]:
    """Return the leaf size that is best for tasks not met, and trees with it, fitted on ``scores [H, P]`` of all."""
    gains = scores - scores.mean(axis=1, keepdims=True)
    leaf = max(LEAVES, key=lambda leaf: chosen_gain(leaf, features, gains, folds))
    return leaf, trees(leaf, features, gains)


def _tuned(
    ground: Ground,
    openings: Sequence[Opening],
    leaf: int,
    model: ExtraTreesRegressor,
    length: int,
    first: int,
    progress: Progress,
) -> Chooser:
    """Return the chooser with the rule that is best at one length on hosts that the model did not learn from."""
    order = tuple(openings)
    lifecycle = ground.env.train.lifecycle
    rules = [
        HandRule(order, patience, threshold)
        for patience, threshold in product(PATIENCE, THRESHOLDS)
    ]
    rules += [
        HandRule(order, patience, None, (), tries)
        for patience, tries in product(PATIENCE, RETURNING)
    ]
    ids = torch.arange(first, first + TUNING_HOSTS).repeat_interleave(len(rules))

    def make(part: Tensor) -> Ordered:
        return Ordered(lifecycle, [rules[row % len(rules)] for row in part.tolist()], model)

    scores, _ = ground.play(make, ids, lambda count, of: progress("choosers, rules", count, of))
    means = scores[length].view(TUNING_HOSTS, len(rules)).mean(dim=0)
    return Chooser(ground.epochs[length], leaf, model, rules[int(means.argmax())])
