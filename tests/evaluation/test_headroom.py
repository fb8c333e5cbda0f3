"""A tiny suite from its bank to its standings and its page: hosts pair with the evaluation's, searches are counted."""

import numpy as np
import pytest
import torch
from tiny import tiny_suite, tiny_train

from simic.envs.growth_env import GrowthEnv
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
        runtime=Runtime(processes=1, threads=1),
    )


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def found(bank, params, told):
    return measure(params, bank, torch.device("cpu"), lambda *said: told.append(said))


def test_rules_and_schedules_are_played_on_the_hosts_of_the_evaluation(bank, params, found):
    """A table is its columns: beside others, in whatever population, a schedule on a host reaches the same to a bit."""
    setup = EvaluationSetup.open(params, bank)
    assert (
        setup.tasks.tolist() == list(found.rows) == [0, 1, 2] * HOSTS
        and found.schedules[0] == "static"
    )
    grown = OpenLoop([possible_schedules(params, setup.env)[-1]] * len(found.rows))
    alone = {"patient": BASELINES["patient"](setup.env), "schedule": grown}
    played = {name: done.score for name, done in play_for_score(setup, alone)}
    assert (
        played["patient"] == found.policies["patient"]
        and min(played["schedule"].params) > found.host.params
    )
    assert len(set(played["schedule"].test_accuracy_pct)) > 2
    tables = {"val_accuracy_pct": "val_pct", "test_accuracy_pct": "test_pct"}
    for column in ("val_accuracy_pct", "test_accuracy_pct", "params", "flops_per_sample"):
        table = getattr(found, tables.get(column, column))
        for place, own in ((0, found.policies["static"]), (-1, played["schedule"])):
            assert getattr(own, column) == tuple(row[place] for row in table)
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
    assert told[1:] == [
        ("schedules, held-out tasks", 2 * TASKS * HOSTS * SCHEDULES, 2 * TASKS * HOSTS * SCHEDULES)
    ]


def test_every_kind_has_the_mean_score_of_everyone(found):
    static, [standings] = found.policies["static"], found.standings.values()
    for place, task in enumerate(found.tasks):
        own = [
            each
            for row, each in zip(found.rows, static.test_accuracy_pct, strict=True)
            if row == place
        ]
        assert standings.by_kind[task.kind]["static"] == pytest.approx(np.mean(own))
    assert len(standings.by_kind) == TASKS


def test_the_rule_gap_is_the_oracle_less_the_tuned_rule_or_else_the_patient_one(found):
    """That gaps follow from the scores, less the price, is audited in every run (C9)."""
    both = {**found.policies, "tuned_rule": found.policies["static"]}
    for policies, rule in ((found.policies, "patient"), (both, "tuned_rule")):
        [standings] = endpoints.standings(
            found.model_copy(update={"policies": policies}), {}
        ).values()
        oracle, own = (
            standings.policies[name].score.estimate for name in ("oracle per task", rule)
        )
        assert standings.rule == rule and standings.rule_gap is not None
        assert standings.rule_gap.estimate == pytest.approx(oracle - own)
        assert standings.policies[rule].over_rule == Interval(0.0, 0.0, 0.0)
    [nobody] = endpoints.standings(found.model_copy(update={"policies": {}}), {}).values()
    assert nobody.rule is nobody.rule_gap is nobody.policies["oracle per task"].over_rule is None


@pytest.mark.parametrize(
    ("low", "estimate", "said"),
    [
        (5.0, 9.0, "decisions matter here."),
        (4.9, 5.0, "decisions seem to matter, but the interval reaches below 5."),
        (4.0, 4.9, "one schedule for all is nearly as good, so there is little to decide."),
    ],
)
def test_the_verdict_is_that_of_the_gap_and_its_interval(found, low, estimate, said):
    [standings] = found.standings.values()
    sentence = page.verdict(standings.model_copy(update={"gap": Interval(estimate, low, 12.0)}))
    assert sentence.endswith(said)
    assert (
        f"{estimate:+.1f} [{low:.1f}, 12.0] points above the best common schedule on 3 tasks"
        in sentence
    )


def test_every_policy_is_in_the_table_and_those_of_reference_come_first(found):
    floor = Fixed(
        test_accuracy_pct=(80.0, 90.0),
        epochs=(0, 0),
        params=(10, 30),
        flops_per_sample=(1, 1),
        training_flops=(1, 1),
    )
    parts = page.page(
        found.model_copy(update={"floors": {"linear classifier": floor}}), "suite tiny"
    ).split("\n## ")
    assert [part.splitlines()[0] for part in parts] == [
        "# Headroom of suite tiny",
        "On held-out tasks of known kinds",
        "Networks that nobody grew, on the same tasks",
    ]
    assert "| linear classifier | 85.0 | 20 |" in " ".join(parts[2].split())
    [standings] = found.standings.values()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in parts[1].splitlines()]
    names = ["static", "best common schedule", "oracle per task", "patient"]
    shown = {cells[0]: cells[1:] for cells in rows if cells and cells[0] in names}
    assert list(shown) == names
    for name, (score, over, params) in shown.items():
        own = standings.policies[name]
        assert score == f"{own.score.estimate:.1f}"
        assert over == page.interval(own.over_common) and params == f"{own.params:,.0f}"
    for kind, scores in standings.by_kind.items():
        assert [
            kind,
            *(f"{scores[name]:.1f}" for name in (*names[:2], "patient", "oracle per task")),
        ] in rows


def test_the_patient_rule_stands_in_where_no_tuned_one_is_known(bank, params):
    asked = params.headroom.model_copy(update={"policies": ("static", "tuned_rule", "patient")})
    params = params.model_copy(update={"headroom": asked})
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


def test_an_error_of_the_search_leaves_no_environment_open(bank, params, monkeypatch):
    """Its worker processes would wait for ever."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    closed = []
    monkeypatch.setattr(headroom, "search_schedules", fail)
    monkeypatch.setattr(GrowthEnv, "close", lambda env: closed.append(env))
    with pytest.raises(ZeroDivisionError):
        measure(params, bank, torch.device("cpu"), lambda *_: None)
    assert len(closed) == 1
