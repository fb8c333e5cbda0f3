"""Which ratio, core and entropy setting is the default? Each change alone against params.yaml, on the growth task.

The unit is the training seed; a change and the defaults are paired by it: paired t interval of committed test accuracy.
The defaults' own runs are those of benchmarks.learning.

    python -m benchmarks.choices [--seeds 5] [--jobs 2] [--only NAME ...]   # goes on where it was
"""

import argparse
import multiprocessing
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import learning, page
from simic.evaluation.statistics import compare, mean_interval

CHANGES = {
    "defaults": [],
    "ratio per_head": ["train.ppo.ratio=per_head"],
    "core none": ["train.policy.core=none"],
    "core gru": ["train.policy.core=gru"],
    "entropy 0": ["train.ppo.entropy_coef=0.0", "train.ppo.entropy_coef_final=0.0"],
    "entropy × 3": ["train.ppo.entropy_coef=0.03", "train.ppo.entropy_coef_final=0.003"],
}
ONLY_WHAT_LEARNS = "evaluate.policies=[learned,learned_sampled]"
WORK, RESULT = Path(".simic/benchmarks/choices"), Path("benchmarks/results/choices.json")


def run(change: str, seed: int) -> dict[str, float]:
    """Mean committed test accuracy of what was learned under a change; a finished run is not run again."""
    if change == "defaults":
        return learning.train_and_evaluate(seed, [], learning.WORK)
    return learning.train_and_evaluate(seed, [*CHANGES[change], ONLY_WHAT_LEARNS], WORK / change.replace(" ", "_"))


def summary(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """By change: accuracy with its interval, greedy and sampled, and the paired difference from the defaults."""
    found = {}
    for change, results in runs.items():
        greedy, sampled = ([result[name] for result in results] for name in ("learned", "learned_sampled"))
        reference = [result["learned"] for result in runs["defaults"]]
        found[change] = {
            "overrides": CHANGES[change],
            "per_seed_pct": greedy,
            "greedy_pct": vars(mean_interval(greedy)),
            "sampled_pct": vars(mean_interval(sampled)),
        }
        if change != "defaults":
            found[change]["minus_defaults_pct"] = vars(compare(greedy, reference, 0).difference)
    return {"training_seeds": len(runs["defaults"]), "changes": found}


def main() -> None:
    """Run what is missing, a process each, and keep the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=list(CHANGES), default=list(CHANGES), metavar="NAME")
    given = parser.parse_args()
    names = list(dict.fromkeys(["defaults", *given.only]))
    jobs = list(product(names, range(1, given.seeds + 1)))
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        results = dict(zip(jobs, pool.starmap(run, jobs, chunksize=1), strict=True))
    runs = {name: [results[name, seed] for seed in range(1, given.seeds + 1)] for name in names}
    page.write_result(RESULT, summary(runs))
    page.main()


if __name__ == "__main__":
    main()
