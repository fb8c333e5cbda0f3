"""Which ratio, core and entropy setting is the default? Each change alone against params.yaml, on the growth task.

The unit is the training seed; a change and the defaults are paired by it: paired t interval of committed test accuracy.
The defaults' own runs are those of benchmarks.learning.

    python -m benchmarks.choices [--seeds 5] [--jobs 2] [--only NAME ...]

Finished runs are kept in benchmarks/results/choices_runs.jsonl, and not run again while the code that trains is the
same.
"""

import argparse
import json
import multiprocessing
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import learning, page
from simic import durable, stages
from simic.evaluation.statistics import compare, mean_interval

CHANGES = {
    "defaults": [],
    "ratio per_head": ["train.ppo.ratio=per_head"],
    "critic shared": ["train.policy.critic=shared"],
    "core none": ["train.policy.core=none"],
    "core gru": ["train.policy.core=gru"],
    "entropy 0": ["train.ppo.entropy_coef=0.0", "train.ppo.entropy_coef_final=0.0"],
    "entropy × 3": ["train.ppo.entropy_coef=0.03", "train.ppo.entropy_coef_final=0.003"],
}
ONLY_WHAT_LEARNS = "evaluate.policies=[learned,learned_sampled]"
RESULT = Path("benchmarks/results/choices.json")
RUNS = RESULT.with_name("choices_runs.jsonl")


def run(job: tuple[str, int]) -> tuple[tuple[str, int], dict[str, float]]:
    """The change and training seed, and the mean committed test accuracy of what was learned under them."""
    change, seed = job
    overrides = [] if change == "defaults" else [*CHANGES[change], ONLY_WHAT_LEARNS]
    return job, learning.train_and_evaluate(seed, overrides, learning.WORK)


def complete(runs: dict[tuple[str, int], dict[str, float]], seeds: int) -> dict[str, list[dict[str, float]]]:
    """By change, in order of the seeds; a change of which one is missing is left out."""
    wanted = range(1, seeds + 1)
    return {name: [runs[name, s] for s in wanted] for name in CHANGES if all((name, s) in runs for s in wanted)}


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


def finished() -> dict[tuple[str, int], dict[str, float]]:
    """Runs of an earlier call that trained with the code as it is now."""
    if not RUNS.exists():
        return {}
    kept = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    code = stages.code_hash()
    return {(each["change"], each["seed"]): each["accuracy_pct"] for each in kept if each["code"] == code}


def keep(runs: dict[tuple[str, int], dict[str, float]]) -> None:
    """One line each, with the hash of the code that trained."""
    code = stages.code_hash()
    rows = [
        {"change": change, "seed": seed, "code": code, "accuracy_pct": found} for (change, seed), found in runs.items()
    ]
    durable.replace_file(RUNS, "".join(json.dumps(row) + "\n" for row in rows).encode())


def main() -> None:
    """Run what is missing, a process each, and keep the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=list(CHANGES), default=list(CHANGES), metavar="NAME")
    given = parser.parse_args()
    names = list(dict.fromkeys(["defaults", *given.only]))
    runs = finished()
    jobs = [job for job in product(names, range(1, given.seeds + 1)) if job not in runs]
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        for job, found in pool.imap_unordered(run, jobs, chunksize=1):
            runs[job] = found
            keep(runs)
            print(job, found, flush=True)
    page.write_result(RESULT, summary(complete(runs, given.seeds)))
    page.main()


if __name__ == "__main__":
    main()
