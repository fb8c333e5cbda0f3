"""Write docs/benchmarks.md from benchmarks/results/*.json.

python -m benchmarks.page
"""

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from benchmarks import figures
from simic import durable

Found = dict[str, Any]
RESULTS, PAGE = Path("benchmarks/results"), Path("docs/benchmarks.md")
INTRODUCTION = """# Benchmarks

Written by `python -m benchmarks.page` from `benchmarks/results/*.json`. The machines were shared, so speeds are
comparable within a table only. Other results: [measurements](history/measurements.md).
"""


def provenance() -> Found:
    """Return where and on what a result was measured."""
    revision = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "revision": revision.stdout.strip() or "unknown",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
    }


def write_result(path: Path, found: Found) -> None:
    """Write a result with its provenance, whole or not at all."""
    content = json.dumps({"provenance": {}} | found | {"provenance": provenance()}, indent=1, allow_nan=False)
    durable.replace_file(path, (content + "\n").encode())


def parser(description: str | None, out: Path | None = None) -> argparse.ArgumentParser:
    """Return a parser that shows a benchmark's docstring as it is; with ``--out`` where it writes one result."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if out is not None:
        made.add_argument("--out", type=Path, default=out)
    return made


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return ["| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *rows)]


def text(results: dict[str, Found]) -> str:
    """Return the page of these results, by name of their file."""
    parts = [INTRODUCTION.rstrip()]
    for name, section in SECTIONS.items():
        if name in results:
            parts += ["", *section(results[name]), "", _measured(results[name]["provenance"])]
    return "\n".join(parts) + "\n"


def _measured(at: Found) -> str:
    return (
        f"Measured {at['date']} at {at['revision']}: {at['cores']} cores, {at['threads']} thread(s), load {at['load']} "
        f"at the end, torch {at['torch']}."
    )


def _image(name: str, what: str) -> str:
    return f"![{what}]({os.path.relpath(figures.DRAWN[name][1], PAGE.parent)})"


# --- the agent beside its peers ---


def _learning(found: Found) -> list[str]:
    tasks = found["tasks"].items()
    rows = [
        (f"{name}, {task['solved']:g}", *_algorithm(algorithm, row, _digits(task)))
        for name, task in tasks
        for algorithm, row in task["rows"].items()
    ]
    head = ("task, solved at", "algorithm", "rng seeds", "learning rate", "final return", "solved")
    verdicts = [_verdict(name, pair, task) for name, task in tasks for pair in task["pairs"] if "low" in pair]
    return [
        "## The agent beside its peers",
        "",
        "`python -m benchmarks.agent run`, then `report`. All have the same environments, network sizes, rollouts and",
        "grid of learning rates, tuned on separate seeds; all else is each library's default. The comparison favours",
        "us: our design, and the length and seeds of Acrobot, were chosen on these tasks and seeds",
        "([experiments](history/experiments.md)). *Final return*: mean of greedy episodes, by rng seed. *Not behind*:",
        "the 95 % Welch interval of the difference lies above −5 % of the solve threshold.",
        "",
        *table((*head, "median steps to solve", "steps/s"), rows),
        "",
        *verdicts,
        "",
        _image("agent", "Returns while learning"),
    ]


def _digits(task: Found) -> int:
    return 1 if abs(task["solved"]) > 10 else 3


def _algorithm(name: str, row: Found, digits: int) -> tuple[str, ...]:
    steps, finals = row["median_steps_to_solve"], row["final_returns"]
    runs = len(row["rng_seeds"])
    return (
        name,
        str(runs),
        f"{row['config']['learning_rate']:g}",
        f"{row['mean']:.{digits}f} ({min(finals):.{digits}f} … {max(finals):.{digits}f})",
        f"{row['solved_runs']} of {runs}",
        "never" if steps is None else f"{steps:,.0f}",
        f"{row['steps_per_second']:,.0f}",
    )


def _verdict(name: str, pair: Found, task: Found) -> str:
    digits, word = _digits(task), "not behind" if pair["not_behind"] else "not shown to be level"
    difference, low, high = (f"{pair[end]:+.{digits}f}" for end in ("difference", "low", "high"))
    interval = f"{difference}, 95 % interval {low} … {high}"
    return f"- {name}, {pair['ours']} − {pair['theirs']}: {interval}; {word} (margin −{task['margin']:g})"


# --- bandits ---


def _bandits(found: Found) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for task in found["tasks"].values():
        name = f"{task['pulls']} pulls of {task['arms']} arms"
        rows += [(name, f"published: {who}", "", f"{value}", "", "") for who, value in task["published"].items()]
        if "optimum" in task:
            rows.append((name, "optimum (exact)", "", f"{task['optimum']:.2f}", "", ""))
        for who, row in task["baselines"].items():
            label = f"UCB1, constant {task['ucb1_constant']:g}" if who == "UCB1" else who
            rows.append((name, label, "", _with_error(row["return"]), _with_error(row["minus_ucb1"], "+"), ""))
        rows += [(name, who, *_trained(list(runs.values()))) for who, runs in task["runs"].items()]
    return [
        "## Learning to play bandits",
        "",
        "`python -m benchmarks.bandits`: the bandits of RL² ([arXiv 1611.02779](https://arxiv.org/abs/1611.02779)), "
        f"{found['test_bandits']:,} common test bandits.",
        "Both agents are recurrent, with the same sizes, settings and training bandits, and are greedy when tested. ±",
        "is a standard error over bandits; of several trainings the mean, least and most.",
        "",
        *table(("bandits", "player", "trainings", "return", "minus UCB1", "CPU seconds"), rows),
    ]


def _with_error(estimate: list[float], sign: str = "") -> str:
    return f"{estimate[0]:{sign}.2f} ± {estimate[1]:.2f}"


def _trained(runs: list[Found]) -> tuple[str, ...]:
    """Return the cells of an agent's trainings: of one its standard error, of several least and most."""
    cells = []
    for name, sign in (("return", ""), ("minus_ucb1", "+")):
        values = [run[name][0] for run in runs]
        spread = f"{fmean(values):{sign}.2f} ({min(values):{sign}.2f} … {max(values):{sign}.2f})"
        cells.append(_with_error(runs[0][name], sign) if len(runs) == 1 else spread)
    episodes = " or ".join(f"{count:,}" for count in sorted({run["episodes"] for run in runs}))
    seconds = median(run["seconds"] for run in runs)
    return f"{len(runs)} of {episodes} episodes", *cells, f"{seconds:,.0f}"


# --- hosts ---


def _scaling(found: Found) -> list[str]:
    rows = [
        (
            f"{row['hosts']:,}",
            str(row["processes"]),
            f"{row['seconds']:.1f}",
            f"{row['trainings_per_core_second']:.0f}",
            f"{100 * row['update_seconds'] / row['seconds']:.0f} %",
        )
        for row in found["rows"]
    ]
    head = ("hosts", "processes", "seconds of an iteration", "trainings per core-second", "of it the PPO update")
    return [
        "## Host trainings per second",
        "",
        f"`python -m benchmarks.scaling`: one iteration of the default run with episodes of {found['epochs']} epochs:",
        "every host is trained, validated and decided for, then PPO learns from it. One thread a process.",
        "",
        *table(head, rows),
    ]


def _population(found: Found) -> list[str]:
    threads = " or ".join(map(str, found["threads"]))
    faster = {(row["case"], row["envs"]): row["speedup"]["auto"] for row in found["rows"]}
    seeds = {
        (row["case"], row["envs"]): row["one_thread_seconds"]["auto with seeds"] / row["one_thread_seconds"]["auto"]
        for row in found["rows"]
    }
    return [
        "## Many hosts at once",
        "",
        f"`python -m benchmarks.population` on {found['device']}: speed of training a population as one computation,",
        f"as a multiple of the fastest plain PyTorch loop over single networks; {threads} thread(s). `default` is the",
        "convolutional host of the suite `patches`; `tables` steps by AdamW, the others by SGD.",
        "",
        *_by_case(faster),
        "",
        "An epoch with seeds of every kind in two of three slots over one without, one thread:",
        "",
        *_by_case(seeds),
        "",
        _image("population", "Speed-up over plain loops by number of hosts"),
    ]


def _by_case(values: dict[tuple[str, int], float]) -> list[str]:
    """Return a table with a row for each number of hosts and a column for each case."""
    cases = list(dict.fromkeys(case for case, _ in values))
    numbers = sorted({envs for _, envs in values})
    rows = [(str(n), *(f"{values[case, n]:.2f}" if (case, n) in values else "" for case in cases)) for n in numbers]
    return table(("hosts", *cases), rows)


SECTIONS: dict[str, Callable[[Found], list[str]]] = {
    "agent": _learning,
    "bandits": _bandits,
    "scaling": _scaling,
    "population": _population,
}


def main() -> None:
    """Write the page and draw its figures."""
    paths = {name: RESULTS / f"{name}.json" for name in SECTIONS}
    results = {name: json.loads(path.read_bytes()) for name, path in paths.items() if path.exists()}
    for name, (draw, path) in figures.DRAWN.items():
        if name in results:
            draw(results[name], path)
    durable.replace_file(PAGE, text(results).encode())
    print(f"{PAGE}: {', '.join(results) or 'no results yet'}")


if __name__ == "__main__":
    main()
