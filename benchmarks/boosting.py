"""Fit gradient boosting and logistic regression to the held-out tasks of params.yaml's suite.

    python -m benchmarks.boosting --work FOLDER [--out FILE.json] [-S KEY=VALUE ...]

They learn from a task's training rows with scikit-learn's own settings. Test accuracy is in points, with an interval
over tasks. FOLDER keeps the prepared data.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from simic import params
from simic.data.batches import HeldOut, load_held_out
from simic.errors import exit_with_message
from simic.evaluation.statistics import mean_interval
from simic.pipeline import stages
from simic.pipeline.paths import Workspace

ROOT = Path(__file__).parents[1]
MODELS: dict[str, Any] = {
    "gradient boosting": lambda: HistGradientBoostingClassifier(random_state=0),
    "logistic regression": lambda: LogisticRegression(max_iter=1000),
}


def add_scores(found: dict[str, dict[str, list[float]]], held_out: HeldOut) -> None:
    """Append test accuracy in points to the lists of a task's group and of each model."""
    train, test = held_out.train, held_out.test
    for number, task in enumerate(held_out.tasks):
        rows, test_rows = (slice(number * len(split), (number + 1) * len(split)) for split in (train, test))
        for name, make in MODELS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # it counts as it is
                model = make().fit(train.x[rows].flatten(1).numpy(), train.y[rows].numpy())
            right = model.score(test.x[test_rows].flatten(1).numpy(), test.y[test_rows].numpy())
            found.setdefault(task.group, {}).setdefault(name, []).append(100.0 * float(right))


def summary(values: list[float]) -> dict[str, float]:
    """Return mean, interval and number of values."""
    mean = mean_interval(values)
    estimate, low, high = (round(value, 2) for value in (mean.estimate, mean.low, mean.high))
    return {"estimate": estimate, "low": low, "high": high, "tasks": len(values)}


def main(arguments: list[str] | None = None) -> None:
    """Print means and intervals by group, and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("-S", dest="overrides", action="append", default=[])
    given = parser.parse_args(arguments)
    workspace = Workspace(given.work)
    if not workspace.prepared.exists():
        stages.prepare(params.load(ROOT / "params.yaml", given.overrides), workspace)
    held_out = load_held_out(workspace.prepared)
    found = dict[str, dict[str, list[float]]]()
    for part in (held_out, *held_out.outside):
        add_scores(found, part)
    tables = {group: {name: summary(values) for name, values in models.items()} for group, models in found.items()}
    print(json.dumps(tables, indent=1))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with exit_with_message("boosting"):
        main()
