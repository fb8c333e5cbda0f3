"""How much of a suite's gap a controller closes: trainings with several seeds on one bank, on the same held-out hosts.

    python -m benchmarks.controller --seeds 5 --work FOLDER [--out FILE.json] [--suite adapt] [-S KEY=VALUE ...]

The bank and its headroom are those of params.yaml's rng_seed; training alone has others. Each part is done once: the
same command goes on where it was stopped. Greedy, sampled and blind, against the best common schedule.
"""

import argparse
import json
import shutil
from pathlib import Path

from simic import durable, params
from simic.errors import SimicError, told_in_one_line
from simic.evaluation import endpoints, gap, result
from simic.evaluation.statistics import Interval
from simic.params import Params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace

ROOT = Path(__file__).parents[1]
POLICIES = ("learned", "learned_sampled", "blind")


def measured(tree: Params, work: Path, seed: int, base: Workspace) -> result.Evaluation:
    """Train with one seed and evaluate, where that is not done yet."""
    own = Workspace(work / f"seed_{seed}")
    if not own.evaluation.exists():
        own.reports.mkdir(parents=True, exist_ok=True)
        if not own.prepared.exists():
            with durable.new_directory(own.prepared) as copy:  # whole or not at all
                shutil.copytree(base.prepared, copy, dirs_exist_ok=True)
        shutil.copy(base.headroom, own.headroom)
        if not own.checkpoints.exists():
            stages.train(tree.model_copy(update={"rng_seed": seed}), own)
        stages.evaluate(tree, own)
    return result.read(own.evaluation)


def summary(headroom: result.HeadroomReport, found: list[result.Evaluation]) -> dict[str, dict[str, object]]:
    """By group of tasks and policy: scores by seed, what is won over the common schedule, the share of the gap."""
    tables: dict[str, dict[str, object]] = {}
    for group in headroom.standings:
        rows: dict[str, object] = {}
        _, common, oracle = endpoints.over_seeds(headroom, [found[0].policies["learned"].per_seed], group)
        for name in [policy for policy in POLICIES if policy in found[0].policies]:
            trained = [each.policies[name].per_seed for each in found]
            reached, *_ = endpoints.over_seeds(headroom, trained, group)
            closed = gap.gap_closed(reached, common, oracle)
            rows[name] = {
                "score_by_seed": reached.mean(axis=1).round(2).tolist(),
                "over_common": _numbers(gap.paired_difference(reached, common)),
                "share": _numbers(closed.share) if closed.share else closed.undefined,
            }
        rows |= {"common": round(float(common.mean()), 2), "oracle": round(float(oracle.mean()), 2)}
        patient = headroom.policies.get("patient")
        if patient is not None:
            own, common, _ = endpoints.over_seeds(headroom, [patient], group)
            rows["patient"] = {
                "score": round(float(own.mean()), 2),
                "over_common": _numbers(gap.paired_difference(own, common)),
            }
        tables[group] = rows
    return tables


def _hold_to(tree: Params, path: Path) -> None:
    """Results of other params are never mixed in: SimicError where the folder has some."""
    wanted = tree.model_dump_json(exclude={"runtime"})
    if path.exists() and path.read_text(encoding="utf-8") != wanted:
        raise SimicError(f"{path.parent}: has results of other params; name another folder with --work")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(wanted, encoding="utf-8")


def _numbers(interval: Interval) -> list[float]:
    return [round(value, 3) for value in (interval.estimate, interval.low, interval.high)]


def main(arguments: list[str] | None = None) -> None:
    """Print the summary, and write it with its settings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--suite", help="with its own data and training; without it those of params.yaml")
    parser.add_argument("-S", dest="overrides", action="append", default=[])
    given = parser.parse_args(arguments)
    suite = stages.suite_overrides(given.suite) if given.suite else ()
    tree = params.load(ROOT / "params.yaml", [*suite, *given.overrides])
    base = Workspace(given.work / "base")
    _hold_to(tree, given.work / "params.json")
    if not base.headroom.exists():
        stages.prepare(tree, base)
        base.reports.mkdir(parents=True, exist_ok=True)
        stages.headroom(tree, base)
    headroom = result.read_headroom(base.headroom)
    found = []
    for seed in range(1, given.seeds + 1):
        found.append(measured(tree, given.work, seed, base))
        tables = summary(headroom, found)
        print(json.dumps({"seeds": seed, **tables}, indent=1), flush=True)
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            settings = {"suite": given.suite, "overrides": given.overrides, "seeds": seed}
            given.out.write_text(json.dumps({**settings, **tables}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with told_in_one_line("controller"):
        main()
