"""Tuning: its schedule and orders are computed by hand, and a long run scores shorter episodes exactly."""

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny import tiny_train

from simic.evaluation import tuning
from simic.evaluation.rules import HandRule, HandRules, possible_openings
from simic.evaluation.tuning import Ground
from simic.params import Runtime
from tests.standard import Params

CPU, ROWS = torch.device("cpu"), 8
SHORT, LONG = 9, 16


@pytest.fixture(scope="module")
def params():
    actions = {"blueprint": ["norm", "conv_light"], "slot": [0, 1]}
    train = tiny_train(actions=actions, batches_per_epoch=1, price=2.0)
    return Params(train=train, runtime=Runtime(processes=1, threads=1))


def test_halving_keeps_a_third_and_plays_those_on_three_times_the_hosts():
    assert tuning.rounds(100, 5) == [(100, 5), (34, 15), (12, 45), (4, 135)]
    assert tuning.rounds(5, 2) == [(5, 2), (4, 6)]
    # The best of each length go on: by the first length 1 and 3, by the second 3 and 0.
    means = torch.tensor([[1.0, 8.0], [9.0, 2.0], [3.0, 1.0], [7.0, 9.0]])
    assert tuning.survivors(means, 2) == [0, 1, 3]


def test_orders_are_by_the_end_by_what_is_added_and_by_the_beginning():
    openings = [(0, 3), (0, 5), (1, 3)]
    # Means 6, 5.5, 3; beside the first the second adds nothing, the third 4 on the last host.
    scores = torch.tensor([[7.0, 6.0, 0.0], [7.0, 7.0, 1.0], [4.0, 3.5, 8.0]])
    early = torch.tensor([[1.0, 3.0], [5.0, torch.nan], [2.0, 2.5]]).expand(3, 3, 2)
    assert tuning.orders(openings, torch.stack([scores, scores]), early) == [
        [(0, 3), (0, 5), (1, 3)],
        [(0, 3), (1, 3), (0, 5)],
        [(0, 5), (1, 3), (0, 3)],
    ]


def test_both_families_are_among_the_configurations_and_each_rule_once():
    order = [(0, kind) for kind in range(11)]
    found = tuning.configurations([order, order, order[::-1]])
    # Of each order 3 patiences × (3 prefixes × 7 thresholds + 5 numbers of tries).
    assert len(found) == len(set(found)) == 2 * 3 * (3 * 7 + 5)
    assert HandRule(tuple(order[:3]), 2, 9.0) in found and HandRule(tuple(order[::-1][:5]), 3, None) in found


def test_priorities_are_shares_of_the_mean_alignment_and_z_scores_with_gains():
    aligned = torch.tensor([[0.2, 1.0], [0.4, 0.0]])  # means 0.3 and 0.5, deviations 0.1 and 0.5
    share, z = tuning.priorities(aligned, torch.tensor([[60.0, 70.0], [60.0, 70.0]]))  # gains -1 and 1 deviations
    assert torch.tensor(share).allclose(torch.tensor([[1 / 0.3, 0.0], [2.0, 0.0]]))
    assert torch.tensor(z).allclose(torch.tensor([[10.0, -2.0 - 3.0], [2.0, 2.0 - 1.0]]))
    found = tuning.configurations([], ((0, 1), (0, 2)), [share])
    assert len(found) == len(set(found)) == 3 * (5 + 7)  # patiences × (numbers of tries + thresholds)
    assert HandRule(((0, 1), (0, 2)), 2, None, share, 3) in found and all(rule.priorities == share for rule in found)


def test_ways_take_the_alignment_of_each_openings_blueprint_on_each_hosts_task(monkeypatch):
    table = torch.tensor([[0.1, 0.9, 0.4], [0.5, 0.3, 1.0], [1.0, 0.2, 0.6]])  # by task
    monkeypatch.setattr(tuning.Alignments, "on", lambda *of: SimpleNamespace(of=lambda tasks: table[tasks]))
    env = SimpleNamespace(host=SimpleNamespace(reads_input=True), blueprints=(), training_data=None, device=CPU)
    scores = torch.tensor([[[1.0, 2.0], [3.0, 7.0]]])
    ground = Ground(env, torch.tensor([2, 0, 1]), (5,))
    found = ground.ways([(0, 2), (0, 0)], torch.tensor([0, 4]), scores)
    assert found == tuning.priorities(table[[2, 0]][:, [2, 0]], scores[0])


def scored(params, bank, epochs, hosts, rules):
    ground = Ground.open(params, bank, CPU, epochs, ROWS)
    with closing(ground.env) as env:
        openings = possible_openings(env)
        own = [replace(rule, order=tuple(openings[place] for place in rule.order)) for rule in rules]

        def make(part):
            return HandRules(env.train.lifecycle, [own[row % len(own)] for row in part.tolist()])

        scores, _ = ground.play(make, hosts.repeat_interleave(len(rules)))
    assert ground.trainings == len(hosts) * len(rules)
    return scores


def test_one_long_run_scores_shorter_episodes_as_if_they_were_played_alone(params, bank):
    """Bit for bit, for rules that keep early, replace late, return, and are cut off in the midst of a try."""
    order = (0, 3, 1)  # places among the openings
    rules = [HandRule(order, 1, 1.0), HandRule(order, 1, 18.0), HandRule(order[:2], 1, None), HandRule(order, 3, 50.0)]
    hosts = torch.tensor([3, 8, 11])  # 12 rows: the second population is filled up
    together = scored(params, bank, (LONG, SHORT), hosts, rules)
    assert torch.equal(together[1], scored(params, bank, (LONG,), hosts, rules)[0])
    assert torch.equal(together[0], scored(params, bank, (SHORT,), hosts, rules)[0])
    assert not torch.equal(together[0], together[1])


def test_tuned_rules_are_of_each_length_and_say_what_they_cost(params, bank, monkeypatch):
    few = {"THRESHOLDS": (2.0,), "PATIENCE": (1,), "PREFIXES": (2,), "RETURNING": (2,)}
    for name, value in {**few, "FIRST_HOSTS": 1, "OPENING_HOSTS": 2}.items():
        monkeypatch.setattr(tuning, name, value)
    told = []
    found = tuning.tune(params, bank, (SHORT, LONG), CPU, lambda *said: told.append(said), ROWS)
    assert [rule.epochs for rule in found.rules] == [SHORT, LONG]
    assert {name.partition(" at ")[0] for rule in found.rules for name in rule.order} <= {"norm", "conv_light"}
    # Every opening on two hosts, then rounds; what was told is what was counted.
    ends = [of for _, done, of in told if done == of]
    assert ends[0] == 2 * 4 and sum(ends) == found.trainings
