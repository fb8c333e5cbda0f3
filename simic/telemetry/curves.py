"""Make the learning curves of a run, a row per iteration, and its few last numbers, for `dvc plots` and `dvc metrics`.

A measurement that was not made is an empty cell, and no key.
"""

import csv
import io
import json
import math

from simic.telemetry.columns import Columns, mean_measured
from simic.telemetry.rows import UpdateRow

CURVES_FILE = "curves.csv"
METRICS_FILE = "metrics.json"
OF_EPISODES = {
    "return": "return",
    "committed_accuracy": "committed_accuracy",
    "kept_seeds": "fossilized",
}
OF_UPDATES = ("entropy", "value_loss", "explained_variance", "approx_kl")
COLUMNS = ("iterations", "validation_score", *OF_EPISODES, *OF_UPDATES)


class Curves:
    """Collects rows in the order of the iterations."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, int | float]] = {}  # by iterations done
        self._last: UpdateRow | None = None

    def append(self, update: UpdateRow, episodes: Columns) -> None:
        """Add one iteration, with the episodes that it learned from; means are over the hosts that were measured."""
        # Iterations done, as in everything that a person reads.
        iterations = update.iteration + 1
        # One row, in the order of COLUMNS.
        row = {"iterations": iterations, "validation_score": update.validation_accuracy}
        for name, column in OF_EPISODES.items():
            row[name] = mean_measured(episodes[column]) if column in episodes else math.nan
        row |= {name: update.metrics.get(name, math.nan) for name in OF_UPDATES}
        self._rows[iterations] = row
        self._last = update

    def csv(self) -> str:
        """Write a header and a row for each iteration."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        # An empty cell: plots leave a gap there, where nan would be a text.
        for row in self._rows.values():
            writer.writerow([value if math.isfinite(value) else "" for value in row.values()])
        return text.getvalue()

    def metrics(self) -> str:
        """Write JSON of the last iteration, and the best validation so far with the iterations done then."""
        # Of the last row, beside the best so far: what `dvc metrics diff` compares.
        numbers: dict[str, int | float] = {"iterations": 0}
        if self._last is not None:
            row = self._rows[self._last.iteration + 1]
            best = self._last.best_iteration
            numbers = {name: value for name, value in row.items() if name != "validation_score"}
            numbers["env_steps"] = self._last.env_steps
            # None before the first validation.
            if best in self._rows:
                numbers |= {
                    "best_iterations": best,
                    "best_validation_score": self._rows[best]["validation_score"],
                }
        return (
            json.dumps(
                {name: value for name, value in numbers.items() if math.isfinite(value)}, indent=2
            )
            + "\n"
        )
