"""Tuning: its schedule is computed by hand, and a long run scores shorter episodes exactly."""

from dataclasses import replace

import pytest
import torch
from tiny import tiny_train

from benchmarks import tuning
from benchmarks.tuning import Ground
from simic.evaluation.rules import HandRule, HandRules, possible_openings
from simic.params import Runtime
from tests.standard import Params

CPU, ROWS = torch.device("cpu"), 8
SHORT, LONG = 9, 16


@pytest.fixture(scope="module")
def params():
    actions = {"blueprint": ["norm", "conv_light"], "slot": [0, 1]}
    train = tiny_train(actions=actions, batches_per_epoch=1, price=2.0)
    return Params(train=train, runtime=Runtime(cores=1, threads=1))


def test_halving_keeps_a_third_and_plays_those_on_three_times_the_hosts():
    assert tuning.rounds(100, 5) == [(100, 5), (34, 15), (12, 45), (4, 135)]
    assert tuning.rounds(5, 2) == [(5, 2), (4, 6)]
    # The best of each length go on: by the first length 1 and 3, by the second 3 and 0.
    means = torch.tensor([[1.0, 8.0], [9.0, 2.0], [3.0, 1.0], [7.0, 9.0]])
    assert tuning.survivors(means, 2) == [0, 1, 3]


def scored(params, bank, epochs, hosts, rules):
    ground = Ground.open(params, bank, CPU, epochs, ROWS)
    env = ground.env
    openings = possible_openings(env)
    ordered = [
        replace(rule, order=tuple(openings[place] for place in rule.order)) for rule in rules
    ]

    def make(part):
        return HandRules(
            env.train.lifecycle, [ordered[row % len(ordered)] for row in part.tolist()]
        )

    scores, _ = ground.play(make, hosts.repeat_interleave(len(rules)))
    assert ground.trainings == len(hosts) * len(rules)
    return scores


def test_one_long_run_scores_shorter_episodes_as_if_they_were_played_alone(params, bank):
    """Bit for bit, for rules that keep early, replace late, return, and are cut off in the midst of a try."""
    order = (0, 3, 1)  # places among the openings
    rules = [
        HandRule(order, 1, 1.0),
        HandRule(order, 1, 18.0),
        HandRule(order[:2], 1, None),
        HandRule(order, 3, 50.0),
    ]
    hosts = torch.tensor([3, 8, 11])  # 12 rows: the second population is filled up
    together = scored(params, bank, (LONG, SHORT), hosts, rules)
    assert torch.equal(together[1], scored(params, bank, (LONG,), hosts, rules)[0])
    assert torch.equal(together[0], scored(params, bank, (SHORT,), hosts, rules)[0])
    assert not torch.equal(together[0], together[1])


def test_tuned_rules_are_of_each_length_and_say_what_they_cost(params, bank, monkeypatch):
    few = {"THRESHOLDS": (2.0,), "PATIENCE": (1,), "PREFIXES": (2,), "RETURNING": (2,)}
    for name, value in {**few, "FIRST_HOSTS": 1, "OPENING_HOSTS": 2}.items():
        monkeypatch.setattr(tuning, name, value)
    calls = []
    ground = Ground.open(params, bank, CPU, (SHORT, LONG), ROWS)
    tuned = tuning.tune(params, ground, lambda *call: calls.append(call))
    assert [rule.epochs for rule in tuned.rules] == [SHORT, LONG]
    assert {name.partition(" at ")[0] for rule in tuned.rules for name in rule.order} <= {
        "norm",
        "conv_light",
    }
    # Every opening on two hosts, then rounds; what was told is what was counted.
    ends = [of for _, count, of in calls if count == of]
    assert ends[0] == 2 * 4 and sum(ends) == tuned.trainings
