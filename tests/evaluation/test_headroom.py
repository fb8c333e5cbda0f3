"""A tiny suite from its bank to its standings and its page: hosts pair with the evaluation's, searches are counted."""

import numpy as np
import pytest
import torch
from tiny import tiny_suite, tiny_train

from simic.data.batches import read_meta
from simic.envs.patient import Patient
from simic.evaluation import endpoints, headroom, page
from simic.evaluation.headroom import hand_rules, measure, possible_schedules, tuned_rules
from simic.evaluation.intervals import Interval
from simic.evaluation.policies import BASELINES
from simic.evaluation.result import Fixed, TunedRule, TunedRules
from simic.evaluation.rules import ByLength
from simic.evaluation.schedules import OpenLoop
from simic.evaluation.scoring import EvaluationSetup, play_for_score
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
        runtime=Runtime(cores=1, threads=1),
    )


@pytest.fixture(scope="module")
def progress():
    return []


@pytest.fixture(scope="module")
def report(bank, params, progress):
    return measure(params, bank, torch.device("cpu"), lambda *call: progress.append(call))


def test_rules_and_schedules_are_played_on_the_hosts_of_the_evaluation(bank, params, report):
    """A table is its columns: beside others, in whatever population, a schedule on a host reaches the same to a bit."""
    setup = EvaluationSetup.open(params, bank)
    assert (
        setup.tasks.tolist() == list(report.rows) == [0, 1, 2] * HOSTS
        and report.schedules[0] == "static"
    )
    grown = OpenLoop([possible_schedules(params, setup.env)[-1]] * len(report.rows))
    actors = {"patient": BASELINES["patient"](setup.env), "schedule": grown}
    scores = {name: episode.score for name, episode in play_for_score(setup, actors)}
    assert (
        scores["patient"] == report.policies["patient"]
        and min(scores["schedule"].params) > report.host.params
    )
    assert len(set(scores["schedule"].test_accuracy_pct)) > 2
    tables = {"val_accuracy_pct": "val_pct", "test_accuracy_pct": "test_pct"}
    for column in ("val_accuracy_pct", "test_accuracy_pct", "params", "flops_per_sample"):
        table = getattr(report, tables.get(column, column))
        for place, policy in ((0, report.policies["static"]), (-1, scores["schedule"])):
            assert getattr(policy, column) == tuple(row[place] for row in table)
    # The hosts that choose are others on the same tasks.
    assert (
        np.shape(report.choosing_val_pct) == np.shape(report.val_pct) == (TASKS * HOSTS, SCHEDULES)
    )
    assert [row[0] for row in report.choosing_val_pct] != [row[0] for row in report.val_pct]


def test_the_common_schedule_is_the_best_on_training_tasks_and_costs_are_counted(report, progress):
    assert np.shape(report.search_scores) == (SEARCHED, SCHEDULES)
    assert report.common == int(np.mean(report.search_scores, axis=0).argmax())
    assert report.common_cost == SEARCHED * SCHEDULES
    assert report.grid_cost == 2 * TASKS * HOSTS * SCHEDULES
    assert progress[0] == ("common schedule, training tasks", 20, 20)
    # Hosts that choose and hosts that score, all at once.
    assert progress[1:] == [
        ("schedules, held-out tasks", 2 * TASKS * HOSTS * SCHEDULES, 2 * TASKS * HOSTS * SCHEDULES)
    ]


def test_the_common_schedule_is_sought_on_training_tasks(bank, params, monkeypatch):
    monkeypatch.setattr(headroom, "grids", lambda _params, _splits, _held_out, hosts, *_: hosts)
    hosts = headroom.search_schedules(params, bank, [], torch.device("cpu"), print)
    # As many of them as there are hosts, or all, in turn.
    expected = read_meta(bank).of_group("train") * params.headroom.search_tasks
    assert hosts.tasks.tolist() == expected[: params.headroom.search_tasks]
    assert len(set(hosts.tasks.tolist())) > 1


def test_every_kind_has_the_mean_score_of_everyone(report):
    static, [standings] = report.policies["static"], report.standings.values()
    for place, task in enumerate(report.tasks):
        accuracies = [
            accuracy
            for row, accuracy in zip(report.rows, static.test_accuracy_pct, strict=True)
            if row == place
        ]
        assert standings.by_kind[task.kind]["static"] == pytest.approx(np.mean(accuracies))
    assert len(standings.by_kind) == TASKS


def test_the_rule_gap_is_the_oracle_less_the_tuned_rule_or_else_the_patient_one(report):
    """That gaps follow from the scores, less the price, is audited in every run (C9)."""
    tuned = {**report.policies, "tuned_rule": report.policies["static"]}
    for policies, rule in ((report.policies, "patient"), (tuned, "tuned_rule")):
        [standings] = endpoints.standings(
            report.model_copy(update={"policies": policies}), {}
        ).values()
        oracle, policy = (
            standings.policies[name].score.estimate for name in ("oracle per task", rule)
        )
        assert standings.rule == rule and standings.rule_gap is not None
        assert standings.rule_gap.estimate == pytest.approx(oracle - policy)
        assert standings.policies[rule].over_rule == Interval(0.0, 0.0, 0.0)
    [nobody] = endpoints.standings(report.model_copy(update={"policies": {}}), {}).values()
    assert nobody.rule is nobody.rule_gap is nobody.policies["oracle per task"].over_rule is None


def test_no_interval_of_a_few_tasks_reaches_beyond_what_scores_can_be(report):
    """The t interval of two values that lie far apart is wider than the scale."""
    rows = len(report.rows)
    far_apart = tuple(98.0 if task == report.rows[0] else 4.0 for task in report.rows)
    static = report.policies["static"].model_copy(
        update={
            "test_accuracy_pct": far_apart,
            "params": (report.host.params,) * rows,
        }
    )
    policies = {**report.policies, "static": static}
    [standings] = endpoints.standings(
        report.model_copy(update={"policies": policies, "price": 0.0}), {}
    ).values()
    found = standings.policies["static"]
    assert 0.0 <= found.score.low < found.score.estimate < found.score.high <= 100.0
    assert -100.0 <= found.over_common.low < found.over_common.high <= 100.0
    assert endpoints.mean_interval([98.0, 4.0]).high > 100.0


def test_the_oracle_and_the_random_search_choose_by_validation_and_are_judged_by_test(report):
    """Schedule 0 is the best by every validation and the worst by test."""
    rows, schedules = np.shape(report.test_pct)
    validation = ((90.0,) + (40.0,) * (schedules - 1),) * rows
    changes = {
        "params": (tuple([report.host.params] * schedules),) * rows,
        "choosing_val_pct": validation,
        "val_pct": validation,
        "test_pct": ((40.0,) + (90.0,) * (schedules - 1),) * rows,
    }
    [standings] = endpoints.standings(report.model_copy(update=changes), {}).values()
    assert standings.policies["oracle per task"].score.estimate == pytest.approx(40.0)
    assert standings.random_search[0] > standings.random_search[-1]


def test_a_group_has_its_own_tasks_alone(report):
    first, *others = report.tasks
    tasks = (first.model_copy(update={"group": "held_out_kinds"}), *others)
    by_group = endpoints.standings(report.model_copy(update={"tasks": tasks}), {})
    assert {
        group: (standings.tasks, set(standings.by_kind)) for group, standings in by_group.items()
    } == {
        "held_out_kinds": (1, {first.kind}),
        first.group: (len(others), {task.kind for task in others}),
    }


def test_a_score_is_the_accuracy_less_the_price_of_added_parameters(report):
    """A network of twice its host's parameters pays the price once; the price is in points."""
    sizes = np.array(report.bare or (report.host.params,) * len(report.rows), dtype=float)
    accuracy = np.full(len(sizes), 80.0)
    assert report.price == 3.0
    assert endpoints.scores(accuracy, 2 * sizes, report) == pytest.approx(77.0)
    assert endpoints.scores(accuracy, sizes, report) == pytest.approx(80.0)


@pytest.mark.parametrize(
    ("low", "estimate", "words"),
    [
        (5.0, 9.0, "decisions matter here."),
        (4.9, 5.0, "decisions seem to matter, but the interval reaches below 5."),
        (4.0, 4.9, "one schedule for all is nearly as good, so there is little to decide."),
    ],
)
def test_the_verdict_is_that_of_the_gap_and_its_interval(report, low, estimate, words):
    [standings] = report.standings.values()
    sentence = page.verdict(standings.model_copy(update={"gap": Interval(estimate, low, 12.0)}))
    assert sentence.endswith(words)
    assert (
        f"{estimate:+.1f} [{low:.1f}, 12.0] points above the best common schedule on 3 tasks"
        in sentence
    )


def test_every_policy_is_in_the_table_and_those_of_reference_come_first(report):
    floor = Fixed(
        test_accuracy_pct=(80.0, 90.0),
        epochs=(0, 0),
        params=(10, 30),
        flops_per_sample=(1, 1),
        training_flops=(1, 1),
    )
    report = report.model_copy(update={"floors": {"linear classifier": floor}})
    parts = page.page(report, "suite tiny").split("\n## ")
    assert [part.splitlines()[0] for part in parts] == [
        "# Headroom of suite tiny",
        "On held-out tasks of known kinds",
        "Networks that nobody grew, on the same tasks",
    ]
    assert "| linear classifier | 85.0 | 20 |" in " ".join(parts[2].split())
    [standings] = report.standings.values()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in parts[1].splitlines()]
    names = ["static", "best common schedule", "oracle per task", "patient"]
    start = rows.index(next(cells for cells in rows if cells and cells[0] == "static"))
    for name, cells in zip(names, rows[start:], strict=False):
        policy = standings.policies[name]
        over = page.interval(policy.over_common)
        assert cells == [name, f"{policy.score.estimate:.1f}", over, f"{policy.params:,.0f}"]
    for kind, scores in standings.by_kind.items():
        means = (f"{scores[name]:.1f}" for name in (*names[:2], "patient", "oracle per task"))
        assert [kind, *means] in rows


def test_the_patient_rule_stands_in_where_no_tuned_one_is_known(bank, params):
    settings = params.headroom.model_copy(update={"policies": ("static", "tuned_rule", "patient")})
    params = params.model_copy(update={"headroom": settings})
    env = EvaluationSetup.open(params, bank).env
    assert tuned_rules(params) is None
    rules = hand_rules(params.headroom.policies, env, None)
    assert list(rules) == ["static", "patient"] and isinstance(rules["patient"], Patient)
    rule = TunedRule(
        family="in order",
        order=("norm at 1",),
        patience=1,
        threshold=2.0,
        epochs=9,
        score=50.0,
        hosts=4,
    )
    tuned = TunedRules(tuned_for="x", rules=(rule,), configurations=1, trainings=4)
    rules = hand_rules(params.headroom.policies, env, tuned)
    assert list(rules) == ["static", "tuned_rule", "patient"] and isinstance(
        rules["tuned_rule"], ByLength
    )


def test_a_task_without_another_of_its_group_gets_two_hosts_since_an_interval_needs_them(
    bank, params, tmp_path
):
    few = params.model_copy(update={"evaluate": Evaluate(eval_seeds=2)})
    assert EvaluationSetup.open(few, bank).tasks.tolist() == [0, 1, 2]
    lone = tiny_suite(tmp_path, held_out=1)
    assert EvaluationSetup.open(few, lone).tasks.tolist() == [0, 0]
