"""A supervised chooser that sees alignments: trees predict what every opening reaches on a task before it is trained.

Openings are tried in the predicted order, as a hand rule does it; how (how long each, what is kept) is tuned on other
tasks of training. It is the answer to: would a classifier do what the controller does?
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from benchmarks.choosers import LEAVES, Model, centred, chosen_gain, folds_of, regressor
from simic.agent.spec import Observation
from simic.envs.growth_env import GrowthEnv
from simic.envs.observations import alignment
from simic.evaluation.rules import HandRule, HandRules
from simic.evaluation.scoring import ROWS_AT_ONCE
from simic.evaluation.trials import ByLength, Opening, possible_openings
from simic.evaluation.tuning import Ground, Told, grown_alone
from simic.params import Lifecycle, Params

TRAININGS = 9000  # of hosts, each opening on each of some tasks
TUNING_HOSTS = 128  # on other tasks
PATIENCE, THRESHOLDS = (1, 2, 3), (1.0, 2.0, 4.0)  # epochs, points
RETURNING = (1, 2, 3)  # tries


@dataclass(frozen=True)
class AlignedChooser:
    """For episodes of so many epochs; the model predicts scores of openings less their mean."""

    epochs: int
    model: Model
    rule: HandRule


class Ordered(HandRules):
    """Plays rules on openings in the order of what a model expects of them."""

    def __init__(self, lifecycle: Lifecycle, rules: Sequence[HandRule], model: Model) -> None:
        super().__init__(lifecycle, rules)
        self.model = model

    def start(self, episode) -> None:
        """Forget all seeds, and the order."""
        super().start(episode)
        self.ordered = False

    def _put_in_order(self, observation: Observation) -> None:
        kinds = observation.masks["blueprint"].shape[-1]
        seen = alignment(observation.features, kinds).double().cpu().numpy()
        places = torch.as_tensor(np.ascontiguousarray(self.model.predict(seen))).argsort(dim=1, descending=True)
        self.order = self.order.gather(1, places.to(self.order.device)[..., None].expand_as(self.order))
        self.ordered = True


def learn(
    params: Params, prepared: Path, epochs: Sequence[int], device: torch.device, told: Told, rows: int = ROWS_AT_ONCE
) -> tuple[list[AlignedChooser], int]:
    """Return a chooser for each number of epochs, and how many host trainings they cost together."""
    ground = Ground.open(params, prepared, device, epochs, rows)
    with closing(ground.env) as env:
        openings = possible_openings(env)
        hosts = torch.arange(TRAININGS // len(openings))
        scores, _ = grown_alone(ground, openings, hosts, told)
        seen = env.alignments.of(ground.tasks[hosts % len(ground.tasks)].to(env.device)).double().cpu().numpy()
        models = [_fitted(seen, of_length.double().numpy(), hosts, len(ground.tasks)) for of_length in scores]
        found = [_tuned(ground, openings, model, k, len(hosts), told) for k, model in enumerate(models)]
    return found, ground.trainings


def actor(env: GrowthEnv, choosers: Sequence[AlignedChooser]) -> ByLength:
    """Return the choosers as an actor."""
    return ByLength({each.epochs: Ordered(env.train.lifecycle, [each.rule], each.model) for each in choosers})


def _fitted(seen: np.ndarray, scores: np.ndarray, hosts: torch.Tensor, tasks: int) -> Model:
    """Return trees whose leaf size is best for tasks they have not met, fitted on all."""
    gains, folds = centred(scores), folds_of(hosts, tasks)
    leaf = max(LEAVES, key=lambda leaf: chosen_gain(leaf, seen, gains, folds))
    model = regressor(leaf)
    model.fit(seen, gains)
    return model


def _tuned(
    ground: Ground, openings: Sequence[Opening], model: Model, length: int, first: int, told: Told
) -> AlignedChooser:
    """Return the chooser with the rule that is best at one length on hosts that the model did not learn from."""
    order, lifecycle = tuple(openings), ground.env.train.lifecycle
    rules = [HandRule(order, patience, threshold) for patience, threshold in product(PATIENCE, THRESHOLDS)]
    rules += [HandRule(order, patience, None, (), tries) for patience, tries in product(PATIENCE, RETURNING)]
    ids = torch.arange(first, first + TUNING_HOSTS).repeat_interleave(len(rules))

    def make(part: torch.Tensor) -> Ordered:
        return Ordered(lifecycle, [rules[row % len(rules)] for row in part.tolist()], model)

    scores, _ = ground.play(make, ids, lambda done, of: told("rules of the aligned chooser", done, of))
    means = scores[length].view(TUNING_HOSTS, len(rules)).mean(dim=0)
    return AlignedChooser(ground.epochs[length], model, rules[int(means.argmax())])
