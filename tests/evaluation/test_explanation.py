"""The page of one decision: what was done, what was best, and how far to trust it."""

from dataclasses import replace

import pytest

from simic.evaluation.explain import Explanation
from simic.evaluation.explanation import page
from simic.evaluation.result import TriedChoice


def choice(op, score, probability, blueprint=None):
    return TriedChoice(
        op=op, slot=None if op == "WAIT" else 1, blueprint=blueprint, probability=probability, score=score,
        val_score=score, return_to_go=1.25, expected=1.0,
    )  # fmt: skip


FOUND = Explanation(
    task="same-held_out-1", row=12, step=11, steps=40, slots=("DORMANT", "norm, alpha 1.00, HOLDING"),
    accuracy_pct=75.8, evidence=(("slot 1: velocity +4.9 points", -0.37),),
    heads={"op": {"WAIT": 0.02, "PRUNE": 0.978, "FOSSILIZE": 0.002}}, value=0.07,
    taken=choice("PRUNE", 65.6, 0.978), others=(choice("WAIT", 60.0, 0.02), choice("FOSSILIZE", 99.8, 0.002)),
    recorded_score=65.6, exact=True,
)  # fmt: skip


def rows(found):
    return [line.split() for line in page(found).splitlines()]


def test_steps_are_counted_as_in_the_report_and_choices_are_marked():
    told = rows(FOUND)
    assert page(FOUND).startswith("same-held_out-1, host 12, step 12 of 40: PRUNE slot 1\n")
    assert [">", "PRUNE", "slot", "1", "0.978", "65.6", "+0.0", "1.00", "1.25"] in told
    assert ["*", "FOSSILIZE", "slot", "1", "0.002", "99.8", "+34.2", "1.00", "1.25"] in told
    assert ["WAIT", "0.020", "60.0", "-5.6", "1.00", "1.25"] in told
    assert "op           PRUNE 0.98, WAIT 0.02, 1 more below 0.005" in page(FOUND)
    assert "-0.37  slot 1: velocity +4.9 points" in page(FOUND)
    assert "Best (*) of 3: FOSSILIZE slot 1, 34.2 points more than what was done (>)." in page(FOUND)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"taken": choice("GERMINATE", 99.9, 0.9, "norm")}, "Taken (>) was the best (*) of 3."),
        ({"others": ()}, "Nothing else was legal."),
        ({"evidence": ()}, "  nothing alone"),
        ({"exact": False}, "differ in the last bits before the decision, and training amplifies that"),
        ({"recorded_score": 70.0}, "not the evaluation's own episode, which ended with 70.0"),
    ],
)
def test_what_is_otherwise_is_said(changes, said):
    assert said in page(replace(FOUND, **changes)) and said not in page(FOUND)
