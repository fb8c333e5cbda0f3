"""Compare controllers of several training seeds with rules, schedules and searches, on one bank of held-out tasks.

    python -m benchmarks.controller --seeds 5 --work FOLDER [--out FILE.json] [-S KEY=VALUE ...]

Data and headroom are those of params.yaml's rng_seed; only training has other seeds. Each part is done once: the same
command goes on where it was stopped. With --out, the learning curves are drawn beside the file.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from simic import durable, params
from simic.errors import SimicError, exit_with_message
from simic.evaluation import endpoints, result
from simic.evaluation.intervals import Interval, Values, paired_difference
from simic.params import Params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.telemetry import timing

ROOT = Path(__file__).parents[1]
POLICIES = ("learned", "learned_sampled", "blind")


def trained(tree: Params, work: Path, seed: int, base: Workspace) -> Workspace:
    """Train with one seed and evaluate, where that is not done yet.

    Args:
        tree: params of the comparison.
        work: folder of all results.
        seed: of training alone.
        base: workspace with the data and the headroom that all share.
    """
    # What an earlier command has done is there.
    workspace = Workspace(work / f"seed_{seed}")
    if not workspace.evaluation.exists():
        # The evaluation compares with a headroom on the same hosts; the seals say that it is of these data.
        shutil.copytree(base.reports, workspace.reports, dirs_exist_ok=True)
        if not workspace.prepared.exists():
            # Whole or not at all: half a copy would be taken for the data.
            with durable.new_directory(workspace.prepared) as copy:
                shutil.copytree(base.prepared, copy, dirs_exist_ok=True)
        if not workspace.checkpoints.exists():
            stages.train(tree.model_copy(update={"rng_seed": seed}), workspace)
        stages.evaluate(tree, workspace)
    return workspace


def curve(workspace: Workspace, envs: int) -> dict[str, Any]:
    """Read the validation scores of one training by the number of episodes that it had cost."""
    rows = pq.read_table(
        workspace.telemetry / "updates.parquet", columns=["iteration", "validation_accuracy"]
    ).to_pylist()
    timed = timing.read(workspace.telemetry / timing.TIMING_FILE)
    # NaN, which is not itself: validation was not played.
    scored = [row for row in rows if row["validation_accuracy"] == row["validation_accuracy"]]
    return {
        "episodes": [(row["iteration"] + 1) * envs for row in scored],
        "score": [round(row["validation_accuracy"], 2) for row in scored],
        "seconds": round(sum(row.seconds for row in timed), 1),
    }


def by_length(
    headroom: result.HeadroomReport, evaluations: list[result.Evaluation]
) -> dict[str, dict[str, Any]]:
    """Compare on each kind of episode: of the usual length, of others, and on tasks from outside the suite."""
    # The usual length first, as its table is the one that is read.
    usual = f"{headroom.epochs} epochs"
    tables = {
        usual: summary(
            headroom,
            [{n: p.per_seed for n, p in evaluation.policies.items()} for evaluation in evaluations],
        )
    }
    for name, report in headroom.others.items():
        tables[name] = summary(
            report, [evaluation.others[name].per_seed for evaluation in evaluations]
        )
    return tables


def summary(
    headroom: result.HeadroomReport, evaluations: list[dict[str, result.PerSeed]]
) -> dict[str, Any]:
    """Compare policies of several training seeds with all that needs no controller, by group of tasks; intervals are
    over tasks and training seeds.
    """
    tables: dict[str, Any] = {}
    for group, standings in headroom.standings.items():
        # What is the same for all training seeds.
        beside = {
            name: evaluation.score.estimate for name, evaluation in standings.policies.items()
        }
        table: dict[str, Any] = {
            "beside": {name: round(score, 2) for name, score in beside.items()}
        }
        table["random_search"] = [round(score, 2) for score in standings.random_search]
        units = endpoints.rows_of_tasks(headroom, group)

        def scores(accuracy: Any, sizes: Any, units: list[list[int]] = units) -> Values:
            """Score networks on the tasks of the group."""
            points = endpoints.scores(
                np.array(accuracy), np.array(sizes, dtype=np.float64), headroom
            )
            return endpoints.mean_by_task(points, units)

        # Each policy of all training seeds, on the same tasks as the common schedule and the rule.
        common = scores(headroom.test_pct, headroom.params)[:, headroom.common]
        rule = headroom.policies[standings.rule] if standings.rule else None
        for name in [policy for policy in POLICIES if policy in evaluations[0]]:
            values = np.stack(
                [
                    scores(evaluation[name].test_accuracy_pct, evaluation[name].params)
                    for evaluation in evaluations
                ]
            )
            row: dict[str, Any] = {
                "score_by_seed": values.mean(axis=1).round(2).tolist(),
                "params": round(
                    sum(
                        sum(evaluation[name].params) / len(evaluation[name].params)
                        for evaluation in evaluations
                    )
                    / len(evaluations)
                ),
                "over_common": _numbers(paired_difference(values, common)),
            }
            if rule is not None:
                of_rule = scores(rule.test_accuracy_pct, rule.params)
                row["over_rule"] = _numbers(paired_difference(values, of_rule))
            table[name] = row
        tables[group] = table
    return tables


def _numbers(interval: Interval) -> list[float]:
    return [round(value, 3) for value in (interval.estimate, interval.low, interval.high)]


def drawn(evaluations: dict[str, Any]) -> Figure:
    """Draw validation scores of several trainings against episodes, with all that needs no controller as lines."""
    # Trainings are curves; what needs no controller is a line that they have to pass.
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axis = figure.subplots()
    for seed, curve in enumerate(evaluations["curves"], 1):
        label = f"PPO {seed}, {curve['seconds'] / 60:.0f} min"
        axis.plot(
            [n / 1000 for n in curve["episodes"]], curve["score"], marker="o", ms=3, label=label
        )
    for number, (name, score) in enumerate(evaluations["validation"].items()):
        axis.axhline(score, color=f"C{number + 5}", ls="--", lw=1.2, label=name.replace("_", " "))
    axis.set(xlabel="thousand host trainings", ylabel="score on validation tasks (points)")
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("-S", dest="overrides", action="append", default=[])
    options = parser.parse_args(arguments)
    tree = params.load(ROOT / "params.yaml", options.overrides)
    base = Workspace(options.work / "base")
    # Results of other params must not be mixed in; how to compute does not count.
    settings = tree.model_dump_json(exclude={"runtime"})
    file = options.work / "params.json"
    if file.exists() and file.read_text(encoding="utf-8") != settings:
        raise SimicError(
            f"{options.work}: has results of other params; name another folder with --work"
        )
    options.work.mkdir(parents=True, exist_ok=True)
    file.write_text(settings, encoding="utf-8")
    # Data and headroom once, for all seeds.
    if not base.headroom.exists():
        stages.prepare(tree, base)
        base.reports.mkdir(parents=True, exist_ok=True)
        stages.headroom(tree, base)
    headroom = result.read_headroom(base.headroom)
    # Everything is written after each seed, so that a stopped comparison has a result.
    evaluations = []
    curves = []
    for seed in range(1, options.seeds + 1):
        workspace = trained(tree, options.work, seed, base)
        evaluations.append(result.read(workspace.evaluation))
        curves.append(curve(workspace, tree.train.envs))
        tables = {
            "suite": tree.prepare.suite.name,
            "overrides": options.overrides,
            "seeds": seed,
            "curves": curves,
            "validation": headroom.validation,
            "episodes_of": by_length(headroom, evaluations),
        }
        print(json.dumps(tables, indent=1), flush=True)
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
            drawn(tables).savefig(options.out.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    with exit_with_message("controller"):
        main()
