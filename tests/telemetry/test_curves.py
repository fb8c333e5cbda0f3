"""What is plotted of a run: a row per iteration, means over the hosts that were measured, absent where nothing was."""

import json
from pathlib import Path

from simic.agent.metrics import explanations
from simic.telemetry.curves import COLUMNS, OF_UPDATES, Curves
from simic.telemetry.publish import publish
from simic.telemetry.recorder import Recorder
from simic.telemetry.rows import TimingRow, UpdateRow
from tests.helpers import episode, iteration


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


def test_what_is_plotted_of_updates_is_recorded_of_them() -> None:
    assert {*OF_UPDATES} <= explanations().keys()


def test_they_are_published_with_the_tables(tmp_path: Path) -> None:
    with Recorder(tmp_path) as log:
        log.write(iteration(0))
        log.time(TimingRow(iteration=0, collect_seconds=1, update_seconds=1, validate_seconds=1, record_seconds=1))
        publish(tmp_path, log.flush(), tmp_path / "out")
    assert (tmp_path / "out" / "curves.csv").read_text().splitlines()[1:] == ["1,,1.5,40.0,2.0,,,,"]
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["kept_seeds"] == 2.0
