"""Every check: PASS on the clean run, FINDING with its defect planted, NOT_EVALUATED without an input."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from simic.audit import audit
from simic.audit.findings import Status
from simic.audit.record import Table
from simic.growth.life.vocabulary import Op

from .defects import DEFECTS, everywhere, put, two, update
from .synthetic import result

# What is recomputed needs a run that was really trained: test_end_to_end.py.
ON_TABLES = tuple(check for check in audit.checks(is_gym=False) if not check.id.startswith("C"))
CASES = [(name, index) for name, defects in DEFECTS.items() for index in range(len(defects))]


def test_every_registered_check_has_a_planted_defect():
    assert {check.id for check in ON_TABLES} == set(DEFECTS)


@pytest.mark.parametrize("check", ON_TABLES, ids=lambda check: check.id)
def test_clean_run_passes(check, clean):
    found = check.run(clean)
    assert found.status is Status.PASS, found.measured
    assert found.measured


@pytest.mark.parametrize(("name", "index"), CASES, ids=[f"{name}-{index}" for name, index in CASES])
def test_planted_defect_is_found_at_its_severity(name, index, plant):
    severity, damage = DEFECTS[name][index]
    found = result(damage(plant).run, name)
    assert (found.status, found.severity) == (Status.FINDING, severity), found.measured


NEEDS = [(check.id, need) for check in ON_TABLES for need in check.needs if need != "params"]


@pytest.mark.parametrize(("name", "need"), NEEDS, ids=[f"{name}-{need}" for name, need in NEEDS])
def test_missing_input_is_never_a_pass(name, need, plant):
    found = result(plant.without(need), name)
    assert found.status is Status.NOT_EVALUATED and need in found.measured


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


@pytest.mark.parametrize("check", MEASURED, ids=lambda check: check.id)
def test_all_missing_measurements_are_no_data(check, plant):
    """NaN everywhere is the same as no column: never a pass, whatever the check compares with."""
    column = plant.run.updates.resolved(check.needs[0].partition(".")[2])
    assert (
        result(plant.column("updates", column, everywhere(np.nan)).run, check.id).status
        is Status.NOT_EVALUATED
    )


PARTIAL = [check for check in MEASURED if check.complete]


@pytest.mark.parametrize("check", PARTIAL, ids=lambda check: check.id)
def test_one_missing_measurement_neither_raises_nor_alarms_nor_hides_a_defect(check, plant):
    """Leave out the update: its neighbours decide."""
    column = plant.run.updates.resolved(check.needs[0].partition(".")[2])
    assert (
        result(plant.column("updates", column, put(11, np.nan)).run, check.id).status is Status.PASS
    )
    _, damage = DEFECTS[check.id][0]
    assert (
        result(damage(plant).column("updates", column, put(1, np.nan)).run, check.id).status
        is Status.FINDING
    )


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
    found = check.run(damage(plant).run)
    assert (
        found.status is Status.PASS
        and "no finding, since the policy is better than chance" in found.measured
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
    same = update("return_std", slice(None), 1.0)
    late = "late on"
    assert late in result(same(noisy).run, "V1").measured
    steady = update("explained_variance", slice(None), -0.16)
    assert late not in result(same(steady(plant)).run, "V1").measured


def test_hosts_of_one_task_count_together(clean):
    """Twenty hosts that all lose are no proof where it was one of few tasks that was lost."""
    old = clean.evaluation
    few = tuple(task % 3 for task in old.rows)

    def judged(rows, gains):
        static = old.policies["static"].per_seed.test_accuracy_pct
        reached = tuple(value + gains[task] for value, task in zip(static, rows, strict=True))
        seeds = old.policies["learned"].per_seed.model_copy(update={"test_accuracy_pct": reached})
        learned = old.policies["learned"].model_copy(update={"per_seed": seeds})
        changed = {"policies": {**old.policies, "learned": learned}, "rows": rows}
        [check] = [each for each in audit.checks(is_gym=False) if each.id == "F1"]
        return check.run(replace(clean, evaluation=old.model_copy(update=changed)))

    one_of_three = judged(few, {0: -9.0, 1: 0.0, 2: 0.0})
    assert (one_of_three.severity, one_of_three.status) == ("low", Status.FINDING)
    assert "on 3 tasks" in one_of_three.measured
    all_three = judged(few, {0: -3.0, 1: -3.1, 2: -2.9})
    assert (all_three.severity, all_three.status) == ("critical", Status.FINDING)
    alone = judged((0,) * len(old.rows), {0: -3.0})
    assert (alone.severity, alone.status) == (
        "critical",
        Status.FINDING,
    ) and "20 hosts of one task" in alone.measured


def test_the_rule_by_hand_is_the_tuned_one_where_it_was_played(clean):
    """It beats the learned policy here, which beats the patient rule."""
    old = clean.evaluation
    better = tuple(value + 2.0 for value in old.policies["learned"].per_seed.test_accuracy_pct)
    seeds = old.policies["learned"].per_seed.model_copy(update={"test_accuracy_pct": better})
    tuned = old.policies["patient"].model_copy(update={"per_seed": seeds})
    compared = replace(old.comparison("learned", "patient"), second="tuned_rule")
    changed = {
        "policies": {**old.policies, "tuned_rule": tuned},
        "comparisons": (*old.comparisons, compared),
    }
    [check] = [each for each in audit.checks(is_gym=False) if each.id == "F3"]
    assert check.run(clean).status == Status.PASS
    found = check.run(replace(clean, evaluation=old.model_copy(update=changed)))
    assert (found.severity, found.status) == (
        "medium",
        Status.FINDING,
    ) and "vs tuned_rule" in found.measured


def test_the_sums_of_training_break_ties_of_validations(clean):
    """The mean scores are equal in another order of summation; the checkpoint is the one that training chose."""
    scores = Table(
        {
            "iteration": np.array([7, 15]),
            **dict.fromkeys(("score", "return"), np.full((2, 4), 70.1)),
        }
    )
    means = np.full(len(clean.updates), np.nan)
    means[[7, 15]] = 70.1, np.nextafter(70.1, 71.0)
    updates = Table({**clean.updates.columns, "validation_accuracy": means})

    def judged(best):
        iterations = {"best": best, "latest": len(updates)}
        checkpoints = {
            name: SimpleNamespace(manifest=SimpleNamespace(iteration=n))
            for name, n in iterations.items()
        }
        run = replace(clean, updates=updates, validations=scores, checkpoints=checkpoints)
        [check] = [check for check in audit.checks(is_gym=False) if check.id == "C6"]
        return check.run(run).status

    assert (judged(16), judged(8)) == (Status.PASS, Status.FINDING)
