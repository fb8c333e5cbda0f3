"""Does the controller learn to grow? Several training seeds, each trained and evaluated, compared with the baselines.

The unit is the training seed: its evaluation seeds are averaged, then a paired t interval over training seeds says how
the learned policy differs from each baseline on committed test accuracy.

    python -m benchmarks.learning [--seeds 5] [--jobs 2] [-S KEY=VALUE] [--work DIR] [--out FILE.json]
"""

import argparse
import json
import multiprocessing
from pathlib import Path

from benchmarks import page
from simic import durable, params, seals
from simic.evaluation import result
from simic.evaluation.statistics import compare, mean_interval
from simic.pipeline import stages
from simic.pipeline.paths import Workspace

EVALUATION_CODE, PACKAGE = ("data", "evaluation"), seals.PACKAGE
WORK, RESULT = Path(".simic/benchmarks/learning"), Path("benchmarks/results/learning.json")


def tree_of(seed: int, overrides: list[str]) -> params.Params:
    """params.yaml with what a run of this benchmark sets."""
    fixed = [f"rng_seed={seed}", "runtime.threads=1", "runtime.progress=plain", *overrides]
    return params.load(Path("params.yaml"), fixed)


def identity(seed: int, overrides: list[str]) -> str:
    """sha256 of all that a run's result depends on: params, and the code that prepares, trains and evaluates."""
    tree = tree_of(seed, overrides)
    places = [path for place in EVALUATION_CODE for path in sorted((PACKAGE / place).rglob("*.py"))]
    code = [durable.sha256(path) for path in places]
    return params.digest(
        tree.rng_seed,
        tree.prepare,
        tree.headroom,
        tree.train,
        tree.evaluate,
        seals.code_hashes(seals.STAGES["train"].code),
        code,
    )


def train_and_evaluate(seed: int, overrides: list[str], root: Path) -> dict[str, float]:
    """Mean committed test accuracy (points) of every policy for one training seed; what the same code and params have
    finished is not run again.
    """
    tree, this = tree_of(seed, overrides), identity(seed, overrides)
    workspace = Workspace(root / this[:12])
    if not workspace.evaluation.exists():
        for name in ("prepare", "headroom", "train", "evaluate"):
            stages.STAGES[name](tree, workspace)
    found = result.read(workspace.evaluation)
    return {name: policy.test_accuracy_pct.estimate for name, policy in found.policies.items()}


def summary(runs: list[dict[str, float]], overrides: list[str]) -> dict[str, object]:
    """Means with intervals over training seeds, and the paired differences of the learned policy."""
    columns = {name: [run[name] for run in runs] for name in runs[0]}
    learned = columns["learned"]
    differences = {name: compare(learned, other, 0) for name, other in columns.items() if name != "learned"}
    return {
        "training_seeds": len(runs),
        "overrides": overrides,
        "test_accuracy_pct": {name: vars(mean_interval(values)) for name, values in columns.items()},
        "per_seed_pct": columns,
        "learned_minus_pct": {
            name: {**vars(found.difference), "p_value": found.p_value} for name, found in differences.items()
        },
    }


def main() -> None:
    """Run the seeds of the command line, a process each, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-S", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.overrides and not arguments.out:
        parser.error("-S needs --out: the page shows the defaults")
    jobs = [(seed, arguments.overrides, arguments.work) for seed in range(1, arguments.seeds + 1)]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        runs = pool.starmap(train_and_evaluate, jobs, chunksize=1)
    found = summary(runs, arguments.overrides)
    page.write_result(arguments.out or RESULT, found)
    page.main()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
