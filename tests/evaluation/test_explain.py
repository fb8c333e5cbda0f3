"""The page that says why a decision was made."""

from simic.evaluation.explain import Explanation, page
from simic.evaluation.result import TriedChoice


def choice(op, score, probability, blueprint=None):
    return TriedChoice(
        op=op, slot=None if op == "WAIT" else 1, blueprint=blueprint, probability=probability, score=score,
        val_score=score, return_to_go=1.25, expected=1.0,
    )  # fmt: skip


def test_steps_are_counted_as_in_the_report_and_choices_are_marked():
    found = Explanation(
        task="same-held_out-1", row=12, step=11, steps=40, slots=("DORMANT", "norm, alpha 1.00, HOLDING"),
        accuracy_pct=75.8, value=0.07, taken=choice("PRUNE", 65.6, 0.978),
        others=(choice("WAIT", 60.0, 0.02), choice("FOSSILIZE", 99.8, 0.002)), recorded_score=65.6, exact=True,
    )  # fmt: skip
    text = page(found)
    told = [line.split() for line in text.splitlines()]
    assert text.startswith("same-held_out-1, host 12, step 12 of 40: PRUNE slot 1\n")
    assert [">", "PRUNE", "slot", "1", "0.978", "65.6", "+0.0", "1.00", "1.25"] in told
    assert ["*", "FOSSILIZE", "slot", "1", "0.002", "99.8", "+34.2", "1.00", "1.25"] in told
    assert ["WAIT", "0.020", "60.0", "-5.6", "1.00", "1.25"] in told
    assert "Best (*) of 3: FOSSILIZE slot 1, 34.2 points more than what was done (>)." in text
