"""Supervised choosers: planted outcomes are found on tasks not met, and openings are tried in the order expected."""

from contextlib import closing

import numpy as np
import pytest
import torch
from tiny import tiny_train

from benchmarks import choosers
from benchmarks.choosers import Chooser
from simic.envs.play import play
from simic.errors import SimicError
from simic.evaluation.rules import HandRule, possible_openings
from simic.evaluation.tuning import Ground
from simic.params import Runtime
from tests.standard import Params

CPU, ROWS = torch.device("cpu"), 8
SHORT, LONG = 26, 34  # epochs; a trial takes 10 here


@pytest.fixture(scope="module")
def params():
    train = tiny_train(actions={"blueprint": ["norm", "conv_light"], "slot": [0, 1]})
    return Params(train=train, runtime=Runtime(processes=1, threads=1))


def test_hosts_of_a_task_share_a_fold():
    folds = choosers.folds_of(torch.arange(60), 20)
    assert (folds[:20] == folds[20:40]).all() and (folds[:20] == folds[40:]).all()
    assert np.bincount(folds[:20]).tolist() == [5, 5, 5, 5]
    assert len(set(choosers.folds_of(torch.arange(8), 1).tolist())) == 4


def planted(hosts=240):
    """Three openings; which is best hides in one of four numbers: 10 points for it, 0 for the others."""
    seen = np.random.default_rng(3).normal(size=(hosts, 4))
    best = (seen[:, 2] > 0.5).astype(int) + (seen[:, 2] > -0.5)
    return seen, 60.0 + 10.0 * np.eye(3)[best], best


def test_a_planted_dependence_is_found_on_tasks_not_met_and_noise_is_not():
    seen, scores, best = planted()
    folds = choosers.folds_of(torch.arange(240), 240)
    gains = scores - scores.mean(axis=1, keepdims=True)
    leaf, model = choosers.fit(seen, scores, folds)
    # The best is 10 − 10/3 above the mean of the three, a random one 0.
    assert choosers.chosen_gain(leaf, seen, gains, folds) == pytest.approx(20 / 3, abs=0.4)
    assert (model.predict(seen).argmax(axis=1) == best).mean() > 0.97
    shuffled = gains[np.random.default_rng(4).permutation(240)]
    assert abs(choosers.chosen_gain(4, seen, shuffled, folds)) < 1.0
    with pytest.raises(SimicError, match="needs more tasks"):
        choosers.chosen_gain(4, seen, scores, np.zeros(240, dtype=np.int64))


@pytest.mark.slow
def test_choosers_are_learned_for_a_length_and_play_in_their_order(params, bank, monkeypatch):
    small = {"PATIENCE": (1,), "THRESHOLDS": (2.0,), "RETURNING": (1,), "LEAVES": (2,), "TREES": 10}
    for name, value in (small | {"TRAININGS": 32, "TUNING_HOSTS": 3}).items():
        monkeypatch.setattr(choosers, name, value)
    found, cost = choosers.learn(params, bank, (SHORT, LONG), CPU, lambda *_: None, 16)
    assert [each.epochs for each in found] == [SHORT, LONG]
    assert cost == 32 + 2 * 2 * 3  # four openings on eight hosts; at both lengths two rules on three hosts
    ground = Ground.open(params, bank, CPU, (SHORT,), 4)
    with closing(ground.env) as env:
        one = Chooser(SHORT, 2, Expects(2), HandRule(tuple(possible_openings(env)), 1, None, (), 1))
        play(env, choosers.actor(env, [one]), 5, lambda *seen: None)
        slot, kind = possible_openings(env)[2]
        assert (env.slots.blueprint[:, slot] == kind).all()


class Expects:
    """A model that expects most of one opening."""

    def __init__(self, place):
        self.place = place

    def predict(self, X):
        return np.eye(4)[[self.place] * len(X)]
