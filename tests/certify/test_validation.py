"""What a seed is worth, on answers that are given."""

import math

import torch

from simic.certify import life
from simic.certify.epochs import Answers, On, validate
from simic.certify.life import Seed, Slot

# Right answers to four samples, by which seeds are on.
RIGHT = {
    frozenset(): (1, 0, 0, 0),
    frozenset({0}): (1, 1, 0, 0),
    frozenset({1}): (1, 0, 1, 0),
    frozenset({0, 1}): (1, 1, 1, 1),
}


def answered(on: On) -> Answers:
    return Answers(torch.tensor(RIGHT[on], dtype=torch.float64), float(len(on)), torch.ones(4))


def test_contributions_and_interactions_by_definition() -> None:
    slots = [
        Slot(life.FOSSILIZED, seed=Seed(alpha=1.0)),
        Slot(life.BLENDING, seed=Seed(alpha=0.5)),
        Slot(life.TRAINING),
    ]
    found = validate(slots, answered)
    assert (found.accuracy, found.all_off_accuracy, found.committed_accuracy) == (100.0, 25.0, 50.0)
    assert (found.loss, found.committed_loss) == (2.0, 1.0)
    assert found.contribution[:2] == [50.0, 50.0] and math.isnan(found.contribution[2])
    # Differences 0, 0, 1, 1: deviation √(1/3), error of the mean half of it.
    assert math.isclose(found.contribution_se[0], 100.0 * math.sqrt(1 / 3) / 2)
    # 1 − ½ − ½ + ¼ of the samples.
    assert found.interaction[:2] == [25.0, 25.0] and found.boost[:2] == [25.0, 25.0] and math.isnan(found.boost[2])
