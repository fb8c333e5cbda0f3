"""A tiny suite from its bank to its standings: hosts pair with the evaluation's, and every number follows from the raw
tables.
"""

import json

import numpy as np
import pytest
import torch
from tiny import tiny_suite, tiny_train

from simic.envs.patient import Patient
from simic.evaluation import endpoints
from simic.evaluation.headroom import hand_rules, known_or_tuned, measure
from simic.evaluation.policies import BASELINES
from simic.evaluation.result import HeadroomReport, PerSeed, TaskRow, TunedRule, TunedRules
from simic.evaluation.rules import ByLength
from simic.evaluation.scoring import EvaluationSetup, play_for_score
from simic.evaluation.statistics import mean_interval
from simic.params import Headroom as Asked
from simic.params import Runtime
from tests.standard import Evaluate, Params

ACTIONS = {"blueprint": ["norm", "conv_light"], "slot": [0, 1]}
RULES = ("static", "patient")
SEARCHED, SCHEDULES, TASKS, HOSTS = 4, 5, 3, 2


@pytest.fixture(scope="module")
def params():
    return Params(
        train=tiny_train(episode_steps=12, batches_per_epoch=1, actions=ACTIONS, price=3.0),
        headroom=Asked(policies=RULES, search_tasks=SEARCHED, floors=False),
        evaluate=Evaluate(eval_seeds=TASKS * HOSTS),
        runtime=Runtime(processes=1, threads=1),
    )


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def found(bank, params, told):
    return measure(params, bank, torch.device("cpu"), lambda *said: told.append(said))


def test_rules_and_schedules_are_played_on_the_hosts_of_the_evaluation(bank, params, found):
    setup = EvaluationSetup.open(params, bank)
    assert setup.tasks.tolist() == list(found.rows) == [0, 1, 2] * HOSTS
    [(_, done)] = play_for_score(setup, {"patient": BASELINES["patient"](setup.env)})
    assert done.score == found.policies["patient"] and found.schedules[0] == "static"
    static = found.policies["static"]
    for column, table in {"val_accuracy_pct": "val_pct", "test_accuracy_pct": "test_pct"}.items():
        assert getattr(static, column) == tuple(row[0] for row in getattr(found, table))
    for column in ("params", "flops_per_sample"):
        assert getattr(static, column) == tuple(row[0] for row in getattr(found, column))
    # The hosts that choose are others on the same tasks.
    assert np.shape(found.choosing_val_pct) == np.shape(found.val_pct) == (TASKS * HOSTS, SCHEDULES)
    assert [row[0] for row in found.choosing_val_pct] != [row[0] for row in found.val_pct]


def test_the_common_schedule_is_the_best_on_training_tasks_and_costs_are_counted(found, told):
    assert np.shape(found.search_scores) == (SEARCHED, SCHEDULES)
    assert found.common == int(np.mean(found.search_scores, axis=0).argmax())
    assert found.common_cost == SEARCHED * SCHEDULES
    assert found.grid_cost == 2 * TASKS * HOSTS * SCHEDULES
    assert told[0] == ("common schedule, training tasks", 20, 20)
    # Hosts that choose and hosts that score, all at once.
    assert told[1:] == [("schedules, held-out tasks", 2 * TASKS * HOSTS * SCHEDULES, 2 * TASKS * HOSTS * SCHEDULES)]


def planted(found, rows, tasks, seed=5, gap=20.0):
    """Tables that are random but for one schedule of each task, which is better."""
    generator = np.random.default_rng(seed)
    shape = len(rows), SCHEDULES
    best = generator.integers(1, SCHEDULES, len(tasks))[list(rows)]
    lift = gap * (np.arange(SCHEDULES) == best[:, None])
    tables = {name: generator.normal(50, 2, shape) + lift for name in ("choosing_val_pct", "val_pct", "test_pct")}
    tables["params"] = found.host.params * generator.uniform(1, 3, shape)
    tables["flops_per_sample"] = generator.uniform(1e4, 2e4, shape)
    tables = {name: tuple(map(tuple, table.tolist())) for name, table in tables.items()}
    score = generator.normal(60, 3, len(rows))
    zeros = (0,) * len(rows)
    names = PerSeed.model_fields.keys() - {"test_accuracy_pct", "params", "flops_per_sample"}
    size = found.host.params * generator.integers(1, 4, len(rows))
    policy = PerSeed(
        test_accuracy_pct=tuple(score), params=tuple(size.tolist()), flops_per_sample=tuple((7 * size).tolist()),
        **dict.fromkeys(names, zeros),
    )  # fmt: skip
    update = {**tables, "rows": rows, "tasks": tasks, "policies": {"rule": policy}, "common": 2, "price": 3.0}
    return HeadroomReport.model_validate(found.model_dump() | json.loads(found.model_copy(update=update).to_json()))


def by_hand(headroom, rows):
    """Gap, share, score and gain of the rule of one group, in loops; ``rows`` are those of each unit."""
    host = headroom.host.params

    def mean(table, unit, schedule, priced=True):
        each = [table[r][schedule] - 3.0 * (headroom.params[r][schedule] - host) / host * priced for r in unit]
        return sum(each) / len(each)

    gaps, gains, scores = [], [], []
    for unit in rows:
        chosen = max(range(SCHEDULES), key=lambda s, unit=unit: mean(headroom.choosing_val_pct, unit, s))
        common, oracle = (mean(headroom.test_pct, unit, s) for s in (headroom.common, chosen))
        rule = headroom.policies["rule"]
        each = [rule.test_accuracy_pct[r] - 3.0 * (rule.params[r] - host) / host for r in unit]
        scores.append(sum(each) / len(each))
        gaps.append(oracle - common)
        gains.append(scores[-1] - common)
    return np.array(gaps), np.array(gains), np.array(scores)


def rows_of(kinds, group="held_out"):
    named = enumerate(kinds)
    return tuple(TaskRow(name=f"{kind} {k}", kind=kind, group=group, classes=2) for k, kind in named)


def check(standings, gaps, gains, scores):
    assert standings.gap.estimate == pytest.approx(gaps.mean()) and standings.gap.estimate > 5
    assert standings.gap.low == pytest.approx(mean_interval(gaps).low)
    rule = standings.policies["rule"]
    assert rule.score.estimate == pytest.approx(scores.mean())
    assert rule.over_common.estimate == pytest.approx(gains.mean())
    assert rule.share is not None and rule.share.estimate == pytest.approx(gains.mean() / gaps.mean())
    oracle, common = standings.policies["oracle per task"], standings.policies["best common schedule"]
    assert oracle.share is not None and oracle.share.estimate == pytest.approx(1.0)
    assert common.share is not None and common.share.estimate == pytest.approx(0.0)


def test_gap_and_shares_are_those_of_the_raw_tables_per_task_and_less_the_price(found):
    """Of each group by itself, whatever the others have."""
    rows, tasks = tuple([*range(8)] * 2), (*rows_of("aabbcc"), *rows_of("zz", "held_out_kinds"))
    headroom = planted(found, rows, tasks)
    of_groups = endpoints.standings(headroom, {})
    assert {group: each.tasks for group, each in of_groups.items()} == {"held_out": 6, "held_out_kinds": 2}
    standings, by_task = of_groups["held_out"], by_hand(headroom, [(k, k + 8) for k in range(6)])
    check(standings, *by_task)
    assert set(standings.by_kind) == {"a", "b", "c"}
    assert standings.by_kind["b"]["rule"] == pytest.approx(by_task[2][2:4].mean())
    alone = planted(found, (0,) * 8, rows_of("a", "train"))  # of a data set alone each host stands for itself
    check(endpoints.standings(alone, {})["train"], *by_hand(alone, [(k,) for k in range(8)]))
    # A search of everything finds, on the hosts that score, the best of each by validation.
    assert len(standings.random_search) == SCHEDULES
    sizes = np.array(headroom.policies["rule"].params)[np.array(rows) < 6]
    assert standings.policies["rule"].params == pytest.approx(sizes.mean())


def test_the_rule_gap_is_the_oracle_less_the_tuned_rule_or_else_the_patient_one(found):
    rows, tasks = tuple([*range(6)] * 2), rows_of("aabbcc")
    headroom = planted(found, rows, tasks)
    own = headroom.policies["rule"]
    other = own.model_copy(update={"test_accuracy_pct": tuple(x + 1.0 for x in own.test_accuracy_pct)})
    gaps, gains, _ = by_hand(headroom, [(k, k + 6) for k in range(6)])
    left = mean_interval(gaps - gains)  # of every task, oracle − rule
    for policies, rule, above in (
        ({"patient": own}, "patient", 0.0),
        ({"patient": own, "tuned_rule": other}, "tuned_rule", 1.0),
        ({"patient": other, "tuned_rule": own}, "tuned_rule", 0.0),
    ):
        standings = endpoints.standings(headroom.model_copy(update={"policies": policies}), {})["held_out"]
        assert standings.rule == rule and standings.rule_gap is not None
        assert standings.rule_gap.estimate == pytest.approx(left.estimate - above)
        assert standings.rule_gap.high == pytest.approx(left.high - above)
    assert endpoints.standings(headroom, {})["held_out"].rule_gap is None


def test_where_there_may_be_no_gap_no_share_is_given_but_a_reason(found):
    none = endpoints.standings(planted(found, tuple([*range(6)] * 2), rows_of("aabbcc"), gap=0.0), {})["held_out"]
    assert none.policies["rule"].share is None and none.gap_undefined.endswith("] and may be 0")


def test_the_patient_rule_stands_in_where_no_tuned_one_is_known(bank, params):
    asked = params.headroom.model_copy(update={"policies": ("static", "tuned_rule", "patient")})
    params = params.model_copy(update={"headroom": asked})
    env = EvaluationSetup.open(params, bank).env
    cpu = torch.device("cpu")
    assert known_or_tuned(params, bank, cpu, lambda *said: None) is None
    rules = hand_rules(params.headroom.policies, env, None)
    assert list(rules) == ["static", "patient"] and isinstance(rules["patient"], Patient)
    rule = TunedRule(family="in order", order=("norm at 1",), patience=1, threshold=2.0, epochs=9, score=50.0, hosts=4)
    tuned = TunedRules(tuned_for="x", rules=(rule,), configurations=1, trainings=4)
    rules = hand_rules(params.headroom.policies, env, tuned)
    assert list(rules) == ["static", "tuned_rule", "patient"] and isinstance(rules["tuned_rule"], ByLength)


def test_a_task_without_another_of_its_group_gets_two_hosts_since_an_interval_needs_them(bank, params, tmp_path):
    few = params.model_copy(update={"evaluate": Evaluate(eval_seeds=2)})
    assert EvaluationSetup.open(few, bank).tasks.tolist() == [0, 1, 2]
    lone = tiny_suite(tmp_path, held_out=1)
    assert EvaluationSetup.open(few, lone).tasks.tolist() == [0, 0]


def test_the_settings_are_all_that_decides_how_hosts_fare_and_nothing_of_the_controller(params):
    def changed(**train):
        return endpoints.settings(params.model_copy(update={"train": params.train.model_copy(update=train)}))

    same = endpoints.settings(params)
    assert changed(envs=8, iterations=3, validate_every=1) == same
    others = {changed(price=1.0), changed(episode_steps=3), changed(actions={}), changed(batch_size=16)}
    others.add(endpoints.settings(params.model_copy(update={"rng_seed": 2})))
    assert len(others | {same}) == 6


def test_several_trainings_stand_between_the_same_ends_as_one(found):
    static = found.policies["static"]
    for group, standings in found.standings.items():
        reached, common, oracle = endpoints.over_seeds(found, [static, static], group)
        assert reached.shape == (2, len(common)) and (reached[0] == reached[1]).all()
        assert reached.mean() == pytest.approx(standings.policies["static"].score.estimate)
        assert common.mean() == pytest.approx(standings.policies["best common schedule"].score.estimate)
        assert (oracle - common).mean() == pytest.approx(standings.gap.estimate)
