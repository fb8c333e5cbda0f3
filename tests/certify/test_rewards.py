"""What the reference pays telescopes, and is worked out by hand where it can be."""

import math
from itertools import pairwise

import pytest

from simic.certify import life, rewards
from simic.certify.life import Seed, Slot
from simic.certify.rewards import State, Step
from simic.params import Train

STEPS = 25  # of an episode


def train(mode: str) -> Train:
    start = Train()
    return start.model_copy(update={"reward": start.reward.model_copy(update={"mode": mode}), "price": 2.0})


def state(stage: int, dwell: int, committed: float, **seed: float) -> State:
    slot = Slot(stage, dwell=dwell, seed=Seed(blueprint=0, **seed))  # pyright: ignore[reportArgumentType]
    return State([slot], [50], committed)


def test_scores_and_potentials_telescope() -> None:
    settings = train("score")
    states = [state(life.DORMANT, 0, 30.0), state(life.HOLDING, 2, 40.0), state(life.FOSSILIZED, 1, 60.0)]
    gamma, total = settings.ppo.gamma, 0.0
    for n, (before, after) in enumerate(pairwise(states)):
        step = Step(before, after, life.WAIT, 0, ended=n == 1)
        total += gamma**n * math.fsum(rewards.components(step, settings, 100, STEPS).values())
    # Nothing is left of the potential at the end; of the score what it ends with, less where it began. 50 parameters
    # kept in a host of 100 cost half of the price.
    assert total == pytest.approx(settings.reward.score.weight * (gamma**2 * (60.0 - 1.0) - 30.0))


def test_fossilizing_pays_what_helps_and_charges_what_does_not() -> None:
    settings = train("shaped")
    good = {"contribution": 5.0, "contribution_se": 1.0, "accuracy": 40.0, "germination_accuracy": 30.0}
    for seed, expected in ((good, 3.0 * math.tanh(1 / 3) * 2 / 3), ({**good, "contribution_se": 3.0}, -0.2)):
        step = Step(state(life.HOLDING, 2, 40.0, **seed), state(life.FOSSILIZED, 1, 40.0, **seed), 4, 0, ended=False)
        assert rewards.components(step, settings, 100, STEPS)["fossilize"] == pytest.approx(expected)


def test_a_credit_is_no_more_than_the_gain() -> None:
    settings = train("shaped")
    seed = {"contribution": 12.0, "contribution_se": 1.0, "accuracy": 34.0, "germination_accuracy": 30.0}
    step = Step(state(life.DORMANT, 0, 30.0), state(life.HOLDING, 1, 34.0, **seed), 0, 0, ended=False)
    # 2 · 4 · 12 / 16 = 6 points, a tenth each.
    paid = rewards.components(step, settings, 100, STEPS)["attribution"]
    assert paid == pytest.approx(settings.ppo.gamma * 0.1 * 6.0)
