"""Which ratio, core and entropy setting is the default? Each change alone against params.yaml, on the growth task.

The unit is the training seed; a change and the defaults are paired by it: paired t interval of committed test accuracy.
The defaults' own runs are those of benchmarks.learning.

    python -m benchmarks.choices [--seeds 5] [--jobs 2] [--only NAME ...]

Finished runs are kept in benchmarks/results/choices_runs.jsonl, and not run again while params and code are the same.
The intervals are not adjusted for the number of changes that are looked at.
"""

import argparse
import json
import multiprocessing
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import learning, page
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


Job = tuple[str, int]  # change and training seed


def overrides(change: str) -> list[str]:
    """What is set beside the defaults; the baselines are played once, with these."""
    return [] if change == "defaults" else [*CHANGES[change], ONLY_WHAT_LEARNS]


def run(job: Job) -> tuple[Job, dict[str, float]]:
    """The mean committed test accuracy of what was learned."""
    change, seed = job
    return job, learning.train_and_evaluate(seed, overrides(change), learning.WORK)


def complete(runs: dict[Job, dict[str, float]], seeds: int) -> dict[str, list[dict[str, float]]]:
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


def finished(identities: dict[Job, str]) -> dict[Job, dict[str, float]]:
    """Runs of an earlier call with these params and this code."""
    if not RUNS.exists():
        return {}
    kept = {row["identity"]: row for row in map(json.loads, RUNS.read_text(encoding="utf-8").splitlines())}
    return {job: kept[identity]["accuracy_pct"] for job, identity in identities.items() if identity in kept}


def keep(job: Job, identity: str, found: dict[str, float]) -> None:
    """One more line."""
    row = {"change": job[0], "seed": job[1], "identity": identity, "accuracy_pct": found}
    with RUNS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    """Run what is missing, a process each, and keep the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=list(CHANGES), default=list(CHANGES), metavar="NAME")
    given = parser.parse_args()
    names = list(dict.fromkeys(["defaults", *given.only]))
    identities = {
        job: learning.identity(job[1], overrides(job[0])) for job in product(CHANGES, range(1, given.seeds + 1))
    }
    runs = finished(identities)
    jobs = [job for job in identities if job not in runs and job[0] in names]
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        for job, found in pool.imap_unordered(run, jobs, chunksize=1):
            runs[job] = found
            keep(job, identities[job], found)
            print(job, found, flush=True)
    page.write_result(RESULT, summary(complete(runs, given.seeds)))
    page.main()


if __name__ == "__main__":
    main()
