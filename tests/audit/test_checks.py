"""Every check: PASS on the clean run, FINDING with its defect planted, NOT_EVALUATED without an input."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from simic.audit import audit
from simic.audit.findings import Status
from simic.audit.record import Table
from simic.growth.life.vocabulary import Op

from .defects import DEFECTS, ELSEWHERE, gaining, put, said, scored, two, update
from .synthetic import result

# What is recomputed needs a run that was really trained: test_end_to_end.py.
ON_TABLES = tuple(check for check in audit.checks(is_gym=False) if not check.id.startswith("C"))
CASES = [(name, index) for name, defects in DEFECTS.items() for index in range(len(defects))]


def test_every_registered_check_has_a_planted_defect():
    assert {check.id for check in ON_TABLES} == set(DEFECTS)


@pytest.mark.parametrize("check", ON_TABLES, ids=lambda check: check.id)
def test_clean_run_passes(check, clean):
    outcome = check.run(clean)
    assert outcome.status is Status.PASS, outcome.measured
    assert outcome.measured


@pytest.mark.parametrize(("name", "index"), CASES, ids=[f"{name}-{index}" for name, index in CASES])
def test_planted_defect_is_found_at_its_severity(name, index, plant):
    severity, damage = DEFECTS[name][index]
    outcome = result(damage(plant).run, name)
    assert (outcome.status, outcome.severity) == (Status.FINDING, severity), outcome.measured


def test_a_length_that_headroom_lacks_is_a_finding_and_ends_no_audit(plant):
    damage = said(lambda tree: tree["others"].update({"9 epochs": ELSEWHERE}))
    assert "X8" in audit.examine(damage(plant).run, "run").unsound


NEEDS = [(check.id, need) for check in ON_TABLES for need in check.needs if need != "params"]


@pytest.mark.parametrize(("name", "need"), NEEDS, ids=[f"{name}-{need}" for name, need in NEEDS])
def test_missing_input_is_never_a_pass(name, need, plant):
    outcome = result(plant.without(need), name)
    assert outcome.status is Status.NOT_EVALUATED and need in outcome.measured


@pytest.mark.parametrize(
    "check", [c for c in ON_TABLES if c.minimum > 1], ids=lambda check: check.id
)
def test_too_little_data_is_not_evaluated(check, clean):
    """Leave one row fewer than the minimum in the table of the first need."""
    source = check.needs[0].split(".")[0]
    table = getattr(clean, source)
    short = replace(clean, **{source: table.where(np.arange(len(table)) < check.minimum - 1)})
    assert check.run(short).status is Status.NOT_EVALUATED


MEASURED = [check for check in ON_TABLES if check.needs[0].startswith("updates.")]


def without_values(check, plant, rows=slice(None)):
    """Leave out the numbers of these updates that the check needs first."""
    column = plant.run.updates.resolved(check.needs[0].partition(".")[2])
    return result(plant.column("updates", column, put(rows, np.nan)).run, check.id).status


@pytest.mark.parametrize("check", MEASURED, ids=lambda check: check.id)
def test_all_missing_measurements_are_no_data(check, plant):
    """NaN everywhere is the same as no column: never a pass, whatever the check compares with."""
    assert without_values(check, plant) is Status.NOT_EVALUATED


PARTIAL = [check for check in MEASURED if check.complete]


@pytest.mark.parametrize("check", PARTIAL, ids=lambda check: check.id)
def test_one_missing_measurement_neither_raises_nor_alarms_nor_hides_a_defect(check, plant):
    """Leave out the update: its neighbours decide."""
    assert without_values(check, plant, 11) is Status.PASS
    _, damage = DEFECTS[check.id][0]
    assert without_values(check, damage(plant), 1) is Status.FINDING


def test_entropy_of_a_head_with_few_rows_is_noise(plant):
    damaged = two(
        update("entropy_by_head.tempo", slice(None), 0.0),
        update("samples_by_head.tempo", slice(None), 5.0),
    )
    assert result(damaged(plant).run, "E1").status is Status.PASS


@pytest.mark.parametrize(
    "check", [check for check in ON_TABLES if check.sign], ids=lambda check: check.id
)
def test_a_sign_of_bad_learning_is_no_finding_where_returns_are_good(check, plant):
    _, damage = DEFECTS[check.id][0]
    outcome = check.run(damage(plant).run)
    assert (
        outcome.status is Status.PASS
        and "no finding, since the policy is better than chance" in outcome.measured
    )


def test_returns_that_fall_are_bad_while_there_is_no_evaluation(plant):
    bare = plant.attribute(evaluation=None)
    assert bare.run.good_returns() == "returns have risen"
    assert bare.column("episodes", "return", lambda values: values[::-1]).run.good_returns() == ""


def test_a_refused_gate_is_no_illegal_action(plant):
    refused = plant.column("steps", "effective_op", put((9, 1), int(Op.WAIT)))
    refused = refused.column("steps", "gate_passed", put((9, 1), False))
    assert result(refused.run, "M1").status is Status.PASS


def test_evidence_names_the_worst_rows(plant):
    damaged = plant.column("updates", "ratio_mean", put(3, 20.0)).column(
        "updates", "ratio_mean", put(9, 50.0)
    )
    evidence = result(damaged.run, "R2").evidence
    assert ([row["iteration"] for row in evidence], evidence[0]["ratio_mean"]) == (
        [10, 4],
        50.0,
    )  # counted from 1


def test_updates_whose_returns_hardly_differ_weigh_little_in_what_a_critic_explains(plant):
    # Of five updates four have values twice as far off as a constant, one explains half. With equal variances that
    # makes 1 - (4 x 2 + 0.5) / 5 = -0.7, and over ten its error is 0.2. With variances of 0.04 and 4 it is
    # 1 - (4 x 0.08 + 2) / 4.16 = 0.44.
    mostly_bad = update("explained_variance", slice(None), -1.0)(plant)
    mostly_bad = update("explained_variance", slice(4, None, 5), 0.5)(mostly_bad)
    equal = update("return_std", slice(None), 1.0)(mostly_bad)
    differ = update("return_std", slice(None), 0.2)(mostly_bad)
    differ = update("return_std", slice(4, None, 5), 2.0)(differ)
    assert (result(equal.run, "V1").status, result(differ.run, "V1").status) == (
        Status.FINDING,
        Status.PASS,
    )


def test_what_a_critic_explains_is_judged_beyond_its_noise(plant):
    # Pairs of -0.4 and 0.2 make -0.1 over ten updates; its error is 0.1, so that is not surely below 0.
    noisy = update("explained_variance", slice(None, None, 2), -0.4)(
        update("explained_variance", slice(1, None, 2), 0.2)(plant)
    )
    equal_variance = update("return_std", slice(None), 1.0)
    late = "late on"
    assert late in result(equal_variance(noisy).run, "V1").measured
    steady = update("explained_variance", slice(None), -0.16)
    assert late not in result(equal_variance(steady(plant)).run, "V1").measured


def test_hosts_of_one_task_count_together(plant):
    """Twenty hosts that all lose are no proof where it was one of few tasks that was lost."""
    hosts = len(plant.run.evaluation.rows)

    def judged(tasks, *gains):
        rows = tuple(host % tasks for host in range(hosts))
        outcome = result(gaining(plant, "static", gains.__getitem__, rows).run, "F1")
        assert outcome.status is Status.FINDING
        return outcome.severity, outcome.measured

    severity, measured = judged(3, -9.0, 0.0, 0.0)
    assert severity == "low" and "on 3 tasks" in measured
    assert judged(3, -3.0, -3.1, -2.9)[0] == "critical"
    severity, measured = judged(1, -3.0)
    assert severity == "critical" and "20 hosts of one task" in measured


def test_the_rule_by_hand_is_the_tuned_one_where_it_was_played(plant):
    """It beats the learned policy here, which beats the patient rule."""
    evaluation = plant.run.evaluation
    learned = evaluation.policies["learned"].per_seed.test_accuracy_pct
    better = tuple(value + 2.0 for value in learned)
    compared = replace(evaluation.comparison("learned", "patient"), second="tuned_rule")
    comparisons = (*evaluation.comparisons, compared)
    tuned = scored(plant, "tuned_rule", "patient", better, comparisons=comparisons)
    outcome = result(tuned.run, "F3")
    assert (outcome.severity, outcome.status) == ("medium", Status.FINDING)
    assert "vs tuned_rule" in outcome.measured


def test_the_sums_of_training_break_ties_of_validations(plant):
    """The mean scores are equal in another order of summation; the checkpoint is the one that training chose."""
    scores = dict.fromkeys(("score", "return"), np.full((2, 4), 70.1))
    means = np.full(len(plant.run.updates), np.nan)
    means[[7, 15]] = 70.1, np.nextafter(70.1, 71.0)
    damaged = plant.attribute(validations=Table({"iteration": np.array([7, 15]), **scores}))
    damaged = damaged.column("updates", "validation_accuracy", lambda _: means)

    def judged(best):
        iterations = {"best": best, "latest": len(means)}
        checkpoints = {
            name: SimpleNamespace(manifest=SimpleNamespace(iteration=number))
            for name, number in iterations.items()
        }
        return result(damaged.attribute(checkpoints=checkpoints).run, "C6").status

    assert (judged(16), judged(8)) == (Status.PASS, Status.FINDING)
