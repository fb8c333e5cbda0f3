"""Supervised choosers: what they learn from is what happens when they choose, and planted outcomes are found."""

from contextlib import closing

import numpy as np
import pytest
import torch
from tiny import tiny_train

from benchmarks import choosers
from benchmarks.choosers import Design, Fitted
from simic.envs.play import play
from simic.errors import SimicError
from simic.evaluation.trials import SEEN, possible_openings
from simic.evaluation.tuning import Ground
from simic.params import Params, Runtime

CPU, ROWS = torch.device("cpu"), 8
SHORT, LONG = 26, 34  # epochs; two trials take 20 here


@pytest.fixture(scope="module")
def params():
    train = tiny_train(actions={"blueprint": ["norm", "conv_light"], "slot": [0, 1]})
    return Params(train=train, runtime=Runtime(processes=1, threads=1))


def nothing(*_):
    """Nobody is told."""


def test_what_is_tried_comes_first_in_the_order():
    assert Design((3, 0), 2).places(5) == [3, 0, 1, 2, 4]
    plan = Design((1,), 3).plan([(0, 4), (0, 7), (1, 4)])
    assert (plan.order, plan.tries, plan.patience) == (((0, 7), (0, 4), (1, 4)), 1, 3)
    assert plan.chooses and plan.threshold == np.inf


def test_features_are_all_values_the_host_without_the_seed_and_their_changes():
    seen = torch.zeros(1, 1, 2, len(SEEN))
    seen[0, 0, :, SEEN.index("accuracy")] = torch.tensor([60.0, 70.0])
    seen[0, 0, :, SEEN.index("contribution")] = torch.tensor([4.0, 6.0])
    seen[0, 0, 1, SEEN.index("gradient_ratio")] = torch.nan
    row = choosers.features(seen)[0].tolist()
    # Two epochs of 7 values and the accuracy without the seed, 56 and 64; then 8 changes.
    first, second, changes = row[:8], row[8:16], row[16:]
    assert len(changes) == 8 and first[-1] == 56.0 and second[-1] == 64.0 and changes[-1] == 8.0
    assert changes[SEEN.index("contribution")] == 2.0
    at = SEEN.index("gradient_ratio")
    assert (first[at], second[at], changes[at]) == (0.0, choosers.MISSING, choosers.MISSING)


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
    fitted = choosers.fit(9, Design((0,), 1), seen, scores, folds)
    # The best is 10 − 10/3 above the mean of the three, a random one 0.
    assert fitted.gain == pytest.approx(20 / 3, abs=0.4)
    assert (fitted.model.predict(seen).argmax(axis=1) == best).mean() > 0.97
    shuffled = choosers.centred(scores)[np.random.default_rng(4).permutation(240)]
    assert abs(choosers.chosen_gain(4, seen, shuffled, folds)) < 1.0
    with pytest.raises(SimicError, match="needs more tasks"):
        choosers.chosen_gain(4, seen, scores, np.zeros(240, dtype=np.int64))


class Told:
    """A model that expects most of one opening for each host in turn."""

    def __init__(self, choices):
        self.choices = choices

    def predict(self, X):
        return np.eye(4)[np.resize(self.choices, len(X))]


def test_an_outcome_is_what_is_reached_when_the_chooser_chooses_so(params, bank):
    """Bit for bit at both lengths, for the opening that was tried last, one tried before and one that was not."""
    ground = Ground.open(params, bank, CPU, (SHORT, LONG), ROWS)
    hosts, choices = torch.tensor([2, 9, 4, 7]), [2, 0, 1, 3]
    design = Design((2, 1), 1)
    with closing(ground.env) as env:
        openings = possible_openings(env)
        data = choosers.outcomes(ground, openings, design, hosts, nothing)
        fitted = Fitted(LONG, design, 1, Told(choices), 0.0, 0)
        scores, [actor] = ground.play(lambda part: choosers.Guided(env, fitted, openings), hosts)
        assert actor.settled.all()
    assert data.scores.shape == (2, 4, 4) and len({*data.scores[1].flatten().tolist()}) > 5
    assert ground.trainings == 4 * 4 + 4
    for host, place in enumerate(choices):
        assert data.scores[:, host, place].tolist() == scores[:, host].tolist()
    assert np.array_equal(data.seen, choosers.features(actor.seen[:4]))


@pytest.mark.slow
def test_choosers_are_learned_for_a_length_and_play(params, bank, monkeypatch):
    for name, value in {"PATIENCE": (1,), "MOST_TRIES": 1, "LEAVES": (2,), "TREES": 10, "FEWER_TREES": 5}.items():
        monkeypatch.setattr(choosers, name, value)
    given = {"trainings": 24, "opening_hosts": 4, "design_hosts": 4, "rows": 16}
    found = choosers.learn(params, bank, (SHORT,), CPU, nothing, **given)
    assert [(each.epochs, each.hosts) for each in found.fitted] == [(SHORT, 6)]
    # 4 openings and a bare host on 4 hosts, 3 designs with 4 openings on 4, the best on 2 more.
    assert found.trainings == 5 * 4 + 3 * 4 * 4 + 4 * 2
    ground = Ground.open(params, bank, CPU, (SHORT,), 4)
    with closing(ground.env) as env:
        actor = found.actor(env)
        play(env, actor, 5, lambda *seen: None)
        assert (env.slots.germinations.sum(dim=1) >= 1).all()
