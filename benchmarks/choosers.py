"""Train supervised choosers: extra trees predict from a task's alignments what every opening reaches on it.

Openings are then tried in the predicted order as a hand rule does it; for how long and what is kept is tuned on tasks
that the trees did not learn from. It answers: would a classifier do what the controller does?
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

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
from simic.params import Lifecycle
from simic.progress import Progress

# Host trainings to learn from: each opening on each of some tasks.
TRAININGS = 9000
# Hosts on other tasks, on which rules are tuned.
TUNING_HOSTS = 128
# Epochs in HOLDING.
PATIENCE = (1, 2, 3)
# Points.
THRESHOLDS = (1.0, 2.0, 4.0)
# Tries before the best is grown again.
RETURNING = (1, 2, 3)
# Least rows of a leaf.
LEAVES = (1, 2, 4, 8, 16)
# Of the cross-validation that chooses the leaf.
FOLDS = 4
TREES = 200

Table = NDArray[np.float64]
Folds = NDArray[np.int64]


@dataclass(frozen=True)
class Chooser:
    """Hold a model and a rule for episodes of so many epochs; the model predicts scores of openings less their mean."""

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
    """Play rules on openings in the order of what a model expects of them."""

    def __init__(
        self, lifecycle: Lifecycle, rules: Sequence[HandRule], model: ExtraTreesRegressor
    ) -> None:
        super().__init__(lifecycle, rules)
        self.model = model

    def start(self, episode: Episode) -> None:
        super().start(episode)
        # Put in order at the first observation: alignments do not change in an episode.
        self.ordered = False

    def _put_in_order(self, observation: Observation) -> None:
        # What a controller sees of the task, too; trees are fitted and asked on the CPU.
        aligned = alignment(observation.features, observation.masks["blueprint"].shape[-1])
        expected = torch.as_tensor(self.model.predict(aligned.double().cpu().numpy()))
        places = expected.argsort(dim=1, descending=True).to(self.order.device)
        self.order = self.order.gather(1, places[..., None].expand_as(self.order))
        self.ordered = True


def learn(ground: Ground, progress: Progress) -> tuple[list[Chooser], int]:
    """Train a chooser for each number of epochs; tell how many host trainings they cost together."""
    # Every opening alone on the same hosts: what the trees learn from.
    openings = possible_openings(ground.env)
    hosts = torch.arange(max(1, TRAININGS // len(openings)))
    scores, _ = grown_alone(ground, openings, hosts, progress)
    # One model for each length, since what pays depends on the time that is left.
    features = ground.aligned(hosts).double().numpy()
    folds = folds_of(hosts, len(ground.tasks))
    fitted = [fit(features, of_length.double().numpy(), folds) for of_length in scores]
    # Rules are tuned on the hosts that follow, as the trees know these.
    choosers = [
        _tuned(ground, openings, *fit_of, k, len(hosts), progress)
        for k, fit_of in enumerate(fitted)
    ]
    return choosers, ground.trainings


def actor(env: GrowthEnv, choosers: Sequence[Chooser]) -> ByLength:
    """Make the player of choosers for the hosts of an environment."""
    return ByLength(
        {
            chooser.epochs: Ordered(env.train.lifecycle, [chooser.rule], chooser.model)
            for chooser in choosers
        }
    )


def trees(leaf: int, features: Table, gains: Table) -> ExtraTreesRegressor:
    """Fit extra trees (Geurts, Ernst and Wehenkel 2006).

    Args:
        leaf: least rows of a leaf.
        features: alignments of hosts, ``[H, P]``.
        gains: scores of openings less their mean, points ``[H, P]``.
    """
    # With a seed, so that a chooser can be made again.
    return ExtraTreesRegressor(n_estimators=TREES, min_samples_leaf=leaf, random_state=0).fit(
        features, gains
    )


def folds_of(hosts: Tensor, tasks: int) -> Folds:
    """Draw a fold for each host ``[H]``: hosts of one task share it, and no kind of task is all in one."""
    # A permutation, as tasks lie in turn by kind.
    groups = hosts % tasks if tasks > 1 else hosts
    return (
        rng.permutation(rng.key(0, rng.Purpose.SUBSAMPLE), int(groups.max()) + 1)[groups] % FOLDS
    ).numpy()


def chosen_gain(leaf: int, features: Table, gains: Table, folds: Folds) -> float:
    """Average the gains of the openings that models choose in folds they have not met.

    Args:
        leaf: least rows of a leaf.
        features: alignments of hosts, ``[H, P]``.
        gains: scores of openings less their mean, points ``[H, P]``.
        folds: of the hosts, ``[H]``.
    """
    predicted = np.empty(len(folds))
    # Small leaves remember: on hosts that they know they would always be best.
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
    """Choose the leaf size by cross-validation, and fit trees of it to all hosts.

    Args:
        features: alignments of hosts, ``[H, P]``.
        scores: of openings, points ``[H, P]``.
        folds: of the hosts, ``[H]``.
    """
    # How good a task is on the whole decides nothing about its openings.
    gains = scores - scores.mean(axis=1, keepdims=True)
    # Of equals the smaller leaf, which comes first.
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
    """Choose the rule that is best at one length on hosts that the model did not learn from."""
    # All rules of both families, on the same hosts.
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
