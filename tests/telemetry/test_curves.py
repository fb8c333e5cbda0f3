"""What is plotted of a run: a row per iteration, means over the hosts that were measured, absent where nothing was."""

import json

from simic.telemetry.curves import COLUMNS, Curves
from simic.telemetry.rows import UpdateRow
from tests.helpers import episode


def curves(scores: list[float], best: int | None) -> Curves:
    """Iterations with these validation scores, the best after so many."""
    found = Curves()
    for number, score in enumerate(scores):
        metrics = {"entropy": 0.5, "value_loss": 0.25 / (number + 1), "approx_kl": float("nan")}
        row = UpdateRow(
            iteration=number, env_steps=40 * (number + 1), metrics=metrics, validation_accuracy=score,
            best_iteration=best, state_chain="",
        )  # fmt: skip
        found.append(row, episode())
    return found


NOT_VALIDATED = float("nan")


def test_a_row_per_iteration_with_empty_cells_for_what_was_not_measured() -> None:
    """Returns 1 and 2, fossilized 1 and 3; of the committed accuracies 40 and NaN one was measured."""
    assert curves([NOT_VALIDATED, 62.5], 2).csv().splitlines() == [
        ",".join(COLUMNS),
        "1,,1.5,40.0,2.0,0.5,0.25,,",
        "2,62.5,1.5,40.0,2.0,0.5,0.125,,",
    ]


def test_the_numbers_are_those_of_the_last_iteration_and_of_the_best_validation() -> None:
    assert json.loads(curves([62.5, 60.0, NOT_VALIDATED], 1).metrics()) == {
        "iterations": 3,
        "return": 1.5,
        "committed_accuracy": 40.0,
        "kept_seeds": 2.0,
        "entropy": 0.5,
        "value_loss": 0.25 / 3,
        "env_steps": 120,
        "best_iterations": 1,
        "best_validation_score": 62.5,
    }
    assert "best_iterations" not in json.loads(curves([NOT_VALIDATED], None).metrics())
    assert json.loads(curves([], None).metrics()) == {"iterations": 0}
