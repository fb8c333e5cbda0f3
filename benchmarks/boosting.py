"""Fit gradient boosting to the held-out tasks of params.yaml's suite.

    python -m benchmarks.boosting --work FOLDER [-S KEY=VALUE ...]

It learns from a task's training rows with scikit-learn's own settings. Test accuracy is in points, with an interval
over tasks. FOLDER keeps the prepared data.
"""

import argparse
from pathlib import Path

from sklearn.ensemble import HistGradientBoostingClassifier

from simic import params
from simic.data.batches import HeldOut, load_held_out
from simic.errors import exit_with_message
from simic.evaluation.intervals import mean_interval
from simic.pipeline import stages
from simic.pipeline.paths import Workspace

ROOT = Path(__file__).parents[1]


def add_scores(scores: dict[str, list[float]], held_out: HeldOut) -> None:
    """Append test accuracy in points to the list of each task's group."""
    train = held_out.train
    test = held_out.test
    # Tasks lie one after the other in each split.
    for number, task in enumerate(held_out.tasks):
        rows, test_rows = (
            slice(number * len(split), (number + 1) * len(split)) for split in (train, test)
        )
        # Untuned, as a user would fit it first.
        model = HistGradientBoostingClassifier(random_state=0)
        model.fit(train.x[rows].flatten(1).numpy(), train.y[rows].numpy())
        right = model.score(test.x[test_rows].flatten(1).numpy(), test.y[test_rows].numpy())
        scores.setdefault(task.group, []).append(100.0 * float(right))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("-S", dest="overrides", action="append", default=[])
    options = parser.parse_args(arguments)
    # Data that are there already are those of the same command.
    workspace = Workspace(options.work)
    if not workspace.prepared.exists():
        stages.prepare(params.load(ROOT / "params.yaml", options.overrides), workspace)
    held_out = load_held_out(workspace.prepared)
    scores = dict[str, list[float]]()
    # Tasks from outside the suite have widths of their own.
    for part in (held_out, *held_out.outside):
        add_scores(scores, part)
    for group, values in scores.items():
        mean = mean_interval(values)
        print(
            f"{group}: {mean.estimate:.2f} [{mean.low:.2f}, {mean.high:.2f}] on {len(values)} tasks"
        )


if __name__ == "__main__":
    with exit_with_message("boosting"):
        main()
