"""The agent beside sb3 PPO, sb3-contrib RecurrentPPO and MaskablePPO, every one tuned with the same grid.

    python -m benchmarks.agent run [--task T] [--algorithm A] [--seeds 10] [--jobs 2]   # goes on where it was
    python -m benchmarks.agent report                                                   # JSON, plot, docs/benchmarks.md
    python -m benchmarks.agent smoke                                                    # every cell, one rollout

Every run (task, algorithm, setting, rng seed) is a file under --work; what exists is not run again. First two tuning
seeds for each setting of the grid, then the rng seeds 1, 2, … with the setting of the best mean final return. Needs the
extra: pip install -e '.[bench]'. The report keeps every run in benchmarks/results/agent_runs.jsonl.
"""

import argparse
import json
import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import agent_cells
from benchmarks.agent_tasks import ENVS, GRID, ROLLOUT, TASKS
from simic import durable

TUNING_SEEDS = (1001, 1002)
WORK, RESULTS = Path(".simic/benchmarks/agent"), Path("benchmarks/results/agent.json")
RUNS = RESULTS.with_name("agent_runs.jsonl")


@dataclass(frozen=True)
class Job:
    """A cell that is wanted, and where it goes."""

    task: str
    algorithm: str
    config: dict[str, Any]
    rng_seed: int
    work: Path
    steps: int | None = None

    @property
    def path(self) -> Path:
        name = "-".join(str(value) for value in self.config.values())
        return (
            self.work / self.task.replace(" ", "_") / self.algorithm.replace(" ", "_") / f"{name}-{self.rng_seed}.json"
        )

    def cell(self) -> dict[str, Any] | None:
        """What it came to; None when it has not been run, or with other code or for another number of steps."""
        if not self.path.exists():
            return None
        cell = json.loads(self.path.read_bytes())
        wanted = agent_cells.code(self.algorithm), agent_cells.whole_steps(self.task, self.steps)
        return cell if (cell["code"], cell["steps"]) == wanted else None


def execute(job: Job) -> str:
    """Runs a cell and keeps it."""
    cell = agent_cells.run(job.task, job.algorithm, job.config, job.rng_seed, job.steps)
    job.path.parent.mkdir(parents=True, exist_ok=True)
    durable.replace_file(job.path, (json.dumps(cell) + "\n").encode())
    mean, seconds = np.mean(cell["returns"]), cell["seconds"]
    return f"{job.path.relative_to(job.work)}: return {mean:.1f} after {cell['steps']} steps, {seconds:.0f} s"


def columns(task: str | None = None, algorithm: str | None = None) -> list[tuple[str, str]]:
    """Task and algorithm of everything that is compared, each once."""
    pairs = [(name, each) for name, found in TASKS.items() for rivals in found.rivals for each in rivals]
    kept = [pair for pair in dict.fromkeys(pairs) if task in (None, pair[0]) and algorithm in (None, pair[1])]
    if not kept:
        names = sorted({each for _, each in pairs})
        raise SystemExit(f"nothing to run: tasks are {', '.join(TASKS)}; algorithms are {', '.join(names)}")
    return kept


def tuning(task: str, algorithm: str, work: Path) -> list[Job]:
    return [Job(task, algorithm, config, seed, work) for config in GRID for seed in TUNING_SEEDS]


def tuned(task: str, algorithm: str, work: Path) -> tuple[dict[str, Any] | None, list[Job]]:
    """The setting with the best mean final return over the tuning seeds, the first of equals; or what has to be run
    before it is known. Behind a setting that reached the highest possible return none can win.
    """
    scores: list[float] = []
    for config in GRID:
        jobs = [job for job in tuning(task, algorithm, work) if job.config == config]
        cells = [cell for job in jobs if (cell := job.cell())]
        if len(cells) < len(jobs):
            return None, jobs
        scores.append(float(np.mean([cell["returns"] for cell in cells])))
        if scores[-1] == TASKS[task].highest:
            break
    return GRID[int(np.argmax(scores))], []


def run(jobs: list[Job], processes: int) -> None:
    """Those that are missing, each in a process of its own."""
    missing = [job for job in jobs if job.cell() is None]
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        for number, line in enumerate(pool.imap_unordered(execute, missing, chunksize=1), 1):
            print(f"{number}/{len(missing)} {line}", flush=True)


def evaluation(task: str, algorithm: str, seeds: int, work: Path) -> list[Job]:
    config, _ = tuned(task, algorithm, work)
    return [] if config is None else [Job(task, algorithm, config, seed, work) for seed in range(1, seeds + 1)]


def welch(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Difference of means with its 95 % interval (Welch 1947): spreads of the two may differ."""
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    return {"difference": float(np.mean(ours) - np.mean(theirs)), "low": interval.low, "high": interval.high}


def summary(work: Path) -> dict[str, Any]:
    """What is finished: by task and algorithm, and the comparisons that both sides are there for."""
    found: dict[str, Any] = {"envs": ENVS, "rollout": ROLLOUT, "grid": GRID, "tasks": {}}
    for name, task in TASKS.items():
        rows: dict[str, Any] = {}
        for _, algorithm in columns(name):
            jobs = evaluation(name, algorithm, 1000, work)
            cells = [cell for job in jobs if (cell := job.cell())]
            if cells:
                rows[algorithm] = _row(cells)
        pairs = [_compared(task, rows, *rivals) for rivals in task.rivals if set(rivals) <= rows.keys()]
        if rows:
            found["tasks"][name] = {"solved": task.solved, "margin": task.margin, "rows": rows, "pairs": pairs}
    return found


def _row(cells: list[dict[str, Any]]) -> dict[str, Any]:
    finals = [float(np.mean(cell["returns"])) for cell in cells]
    solved = [cell["steps_to_solve"] for cell in cells]
    grid = np.array([[value for _, value in cell["curve"]][-_shortest(cells) :] for cell in cells])
    return {
        "config": cells[0]["config"],
        "rng_seeds": [cell["rng_seed"] for cell in cells],
        "final_returns": finals,
        "mean": float(np.mean(finals)),
        "solved_runs": sum(steps is not None for steps in solved),
        "median_steps_to_solve": _median_or_never(solved),
        "steps_per_second": float(np.median([cell["steps_per_second"] for cell in cells])),
        "curve": {
            "steps": [steps for steps, _ in cells[0]["curve"]][-grid.shape[1] :],
            "mean": grid.mean(axis=0).round(2).tolist(),
            "low": grid.min(axis=0).tolist(),
            "high": grid.max(axis=0).tolist(),
        },
    }


def _median_or_never(solved: list[int | None]) -> float | None:
    """Runs that never got there count as later than all others; None when the median is one of them."""
    median = float(np.median([np.inf if steps is None else steps for steps in solved]))
    return median if np.isfinite(median) else None


def _shortest(cells: list[dict[str, Any]]) -> int:
    return min(len(cell["curve"]) for cell in cells)


def _compared(task: Any, rows: dict[str, Any], ours: str, theirs: str) -> dict[str, Any]:
    found = {"ours": ours, "theirs": theirs}
    if min(len(rows[name]["final_returns"]) for name in (ours, theirs)) < 2:
        return found
    interval = welch(rows[ours]["final_returns"], rows[theirs]["final_returns"])
    return found | interval | {"not_behind": bool(interval["low"] > -task.margin)}


def keep_runs(work: Path, path: Path) -> None:
    """One line per finished run."""
    cells = sorted(work.glob("*/*/*.json"))
    if not cells:
        raise SystemExit(f"{work}: no runs there; run first, or put the kept ones back with run --continued")
    lines = [json.dumps(json.loads(cell.read_bytes())) + "\n" for cell in cells]
    durable.replace_file(path, "".join(lines).encode())


def put_back(path: Path, work: Path) -> None:
    """The kept runs as files, where there are none."""
    for line in path.read_text(encoding="utf-8").splitlines():
        cell = json.loads(line)
        target = Job(cell["task"], cell["algorithm"], cell["config"], cell["rng_seed"], work).path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            durable.replace_file(target, (json.dumps(cell) + "\n").encode())


def main() -> None:
    """Run what is missing, or report what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report", "smoke"))
    parser.add_argument("--task")
    parser.add_argument("--algorithm")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--continued", action="store_true", help="take the runs of the last report as done")
    given = parser.parse_args()
    pairs = columns(given.task, given.algorithm)
    if given.what == "smoke":
        jobs = [Job(*pair, GRID[0], 1, given.work.with_name("smoke"), steps=4 * ENVS * ROLLOUT) for pair in pairs]
        run(jobs, given.jobs)
    elif given.what == "run":
        if given.continued:
            put_back(RUNS, given.work)
        while jobs := [job for pair in pairs for job in tuned(*pair, given.work)[1]]:
            run(jobs, given.jobs)
        run([job for pair in pairs for job in evaluation(*pair, given.seeds, given.work)], given.jobs)
    else:
        from benchmarks import page

        keep_runs(given.work, RUNS)
        page.write_result(RESULTS, summary(given.work))
        page.main()


if __name__ == "__main__":
    main()
