"""Compare settings over training seeds: the mean of a metric with its 95 % interval for each setting."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simic.errors import SimicError
from simic.evaluation import intervals
from simic.params import read_tree
from simic.pipeline import dvc_record
from simic.pipeline.paths import Workspace

SEED = "rng_seed"


class SeedRun(NamedTuple):
    """Hold the params of one run by dotted key, and its metrics."""

    params: dict[str, str]
    metrics: Mapping[str, float]


def read_folder(folder: Path) -> SeedRun:
    """Read the run in a project's folder; SimicError where it was not evaluated."""
    # Metrics are written by evaluate alone: a folder without them holds no result to compare.
    workspace = Workspace(folder)
    if not workspace.metrics.exists():
        raise SimicError(
            f"{workspace.metrics}: no such file; give folders of runs that were evaluated"
        )
    return SeedRun(
        dict(_flatten(read_tree(workspace.params))), json.loads(workspace.metrics.read_bytes())
    )


def read_experiments(root: Path) -> list[SeedRun]:
    """Read the evaluated experiments that `dvc exp show` lists."""
    runs = []
    # A failed or queued experiment has no metrics and is left out.
    for commit in json.loads(dvc_record.experiments(root)):
        for experiment in commit["experiments"] or ():
            data = experiment["revs"][0]["data"] or {}
            metrics = data.get("metrics", {}).get("reports/metrics.json", {}).get("data")
            if metrics:
                runs.append(SeedRun(dict(_flatten(data["params"]["params.yaml"]["data"])), metrics))
    return runs


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, json.dumps(value)


def lines(runs: Sequence[SeedRun], metric: str) -> Iterator[str]:
    """Describe each setting in a line: what it varies, the mean of the metric over its seeds with a t interval.

    Raises:
        SimicError: A run lacks the metric, or there is none.
    """
    if not runs:
        raise SimicError(
            "simic table: no run was evaluated; give folders, or run dvc exp run first"
        )
    for run in runs:
        if metric not in run.metrics:
            raise SimicError(f"--metric {metric}: must be one of {', '.join(sorted(run.metrics))}")
    # What is equal in all runs says nothing about a setting.
    keys = sorted({key for run in runs for key in run.params} - {SEED})
    varied = [key for key in keys if len({run.params.get(key) for run in runs}) > 1]
    # A seed that ran twice counts once.
    values: dict[str, dict[str, float]] = {}  # by setting, by seed
    for run in runs:
        setting = " ".join(f"{key}={run.params.get(key, '-')}" for key in varied) or "params.yaml"
        values.setdefault(setting, {})[run.params[SEED]] = run.metrics[metric]
    for setting, by_seed in values.items():
        scores = list(by_seed.values())
        mean = f"{scores[0]:.2f} (one seed)"
        if len(scores) > 1:
            # Over seeds, since one training is one sample of a setting, however many tasks it was scored on.
            interval = intervals.mean_interval(scores)
            mean = f"{interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}] ({len(scores)} seeds)"
        yield f"{setting}   {metric} {mean}"
