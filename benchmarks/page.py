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
from typing import Any

import torch

from simic import durable

Found = dict[str, Any]
RESULTS = Path("benchmarks/results")
PAGE = Path("docs/benchmarks.md")
IMAGES = Path("docs/images")
COLUMNS = 5  # of plots side by side
INTRODUCTION = """# Benchmarks

Written by `python -m benchmarks.page` from `benchmarks/results/*.json`. The machines were shared, so speeds are
comparable within a table only. Other results: [experiments](history/experiments.md).
"""


def provenance() -> Found:
    """Describe where and on what a result was measured."""
    # With --dirty, as a result of changed files has to say so.
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
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


def write_result(
    path: Path,
    numbers: Found,
) -> None:
    """Write a result with its provenance, whole or not at all."""
    # First in the file, but as it is when all is measured.
    content = json.dumps(
        {"provenance": {}} | numbers | {"provenance": provenance()}, indent=1, allow_nan=False
    )
    durable.replace_file(path, (content + "\n").encode())


def parser(
    description: str | None,
    out: Path | None = None,
) -> argparse.ArgumentParser:
    """Make a parser that shows a benchmark's docstring as it is; with ``--out`` where it writes one result."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if out is not None:
        parser.add_argument("--out", type=Path, default=out)
    return parser


def table(
    head: tuple[str, ...],
    rows: list[tuple[str, ...]],
) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *rows)]


def text(results: dict[str, Found]) -> str:
    """Write the page of these results, by name of their file."""
    parts = [INTRODUCTION.rstrip()]
    for name, section in SECTIONS.items():
        # Machines have some results only: the page is written of those.
        if name in results:
            at = results[name]["provenance"]
            measured = (
                f"Measured {at['date']}, {at['revision']}, {at['cores']} cores, load {at['load']}."
            )
            parts += ["", *section(results[name]), "", measured]
    return "\n".join(parts) + "\n"


# --- the agent beside its peers ---


def _learning(numbers: Found) -> list[str]:
    rows = [
        _pair(name, task, pair) for name, task in numbers["tasks"].items() for pair in task["pairs"]
    ]
    head = ("task, solved at", "simic, peer", "return", "solved", "after", "steps/s", "simic is")
    return [
        "## The agent beside its peers",
        "",
        "`python -m benchmarks.agent run`, then `report`. Both have the same environments, network sizes, rollouts and",
        "grid of learning rates, tuned on two other seeds for half the steps; all else is each library's default.",
        "Settings by task: `benchmarks/agent_tasks.py`. Our design was chosen on the first five tasks.",
        "*Return*: mean of greedy episodes. *After*: median steps to solve.",
        "Steps/s: by CPU time. *simic is*: the difference, 95 % Welch interval; *level*: above −5 % of the threshold.",
        "",
        *table(head, rows),
        "",
        "![Returns while learning](images/benchmark_agent.png)",
    ]


def _pair(
    name: str,
    task: Found,
    pair: Found,
) -> tuple[str, ...]:
    """Describe us and a peer in a line, our numbers first."""
    # Returns near 1 differ in later digits.
    digits = 1 if abs(task["solved"]) > 10 else 3
    rivals = (pair["ours"], pair["theirs"])
    rows = [task["rows"][rival] for rival in rivals]
    after = [row["median_steps_to_solve"] for row in rows]
    return (
        f"{name}, {task['solved']:g}",
        ", ".join(rivals),
        ", ".join(f"{row['mean']:.{digits}f}" for row in rows),
        ", ".join(f"{row['solved_runs']}/{len(row['rng_seeds'])}" for row in rows),
        ", ".join("never" if steps is None else f"{steps:,.0f}" for steps in after),
        ", ".join(f"{row['steps_per_second']:,.0f}" for row in rows),
        _verdict(pair, task["margin"], digits),
    )


def _verdict(
    pair: Found,
    margin: float,
    digits: int,
) -> str:
    """Say whether we are ahead of a peer, level with it or behind, and by how much."""
    if "low" not in pair:
        return "not known"
    # Level and undecided differ by whether the difference may be more than is allowed.
    word = "behind" if pair["high"] < 0 else "undecided"
    if pair["low"] > -margin:
        word = "ahead" if pair["low"] > 0 else "level"
    difference, low, high = (f"{pair[end]:+.{digits}f}" for end in ("difference", "low", "high"))
    return f"{word}: {difference} [{low}, {high}]"


def draw_learning(numbers: Found) -> Any:
    """Draw the returns of agents while learning: mean over rng seeds, and the range of all."""
    from matplotlib.figure import Figure  # a GPU machine may measure without it

    tasks = numbers["tasks"]
    lines = -(-len(tasks) // COLUMNS)
    figure = Figure(figsize=(4.2 * COLUMNS, 3.4 * lines), layout="constrained")
    axes = figure.subplots(lines, COLUMNS, squeeze=False)
    # The last line may have room left.
    for axis in axes.flat[len(tasks) :]:
        axis.remove()
    for axis, (name, task) in zip(axes.flat, tasks.items(), strict=False):
        for algorithm, row in task["rows"].items():
            curve = row["curve"]
            (line,) = axis.plot(curve["steps"], curve["mean"], label=algorithm)
            # The range and no deviation, as runs are few.
            axis.fill_between(
                curve["steps"],
                curve["low"],
                curve["high"],
                color=line.get_color(),
                alpha=0.15,
                lw=0,
            )
        axis.axhline(task["solved"], color="grey", ls=":", lw=1)
        axis.set(title=name, xlabel="environment steps")
        axis.legend(fontsize=7)
        axis.set_ylabel("return, last 20 episodes")
    return figure


# --- hosts ---


def _scaling(numbers: Found) -> list[str]:
    rows = [
        (
            f"{row['hosts']:,}",
            str(row["cores"]),
            f"{row['seconds']:.1f}",
            f"{row['trainings_per_core_second']:.0f}",
        )
        for row in numbers["rows"]
    ]
    head = ("hosts", "cores", "seconds", "trainings per core-second")
    return [
        "## Host trainings per second",
        "",
        f"`python -m benchmarks.scaling`: an iteration of the default run at {numbers['epochs']} epochs,",
        "with its update.",
        "",
        *table(head, rows),
    ]


def _serving(numbers: Found) -> list[str]:
    cells: dict[str, list[str]] = {}
    for row in numbers["rows"]:
        figures = f"{row['per_second']:.0f}, {row['p50_ms']:.1f}, {row['p99_ms']:.1f}"
        cells.setdefault(row["server"], []).append(figures)
    counts = dict.fromkeys(f"{row['rows']:,}" for row in numbers["rows"])
    memory = numbers["memory_mb"]
    requests = numbers["requests"]
    return [
        "## Serving",
        "",
        "`python -m benchmarks.serving`: requests/s, p50 and p99 in ms by rows of a request; one client, 30 columns,",
        "servers of one thread, asked in turns. Boosting is scikit-learn's, in simic's server. Memory after",
        f"{requests // len(memory):,} and {requests:,} requests: {memory[0]:.0f} and {memory[-1]:.0f} MB.",
        "",
        *table(("server", *counts), [(name, *values) for name, values in cells.items()]),
    ]


def _production(numbers: Found) -> list[str]:
    seeds = numbers["seeds"]
    false = sum(seed["false"] for seed in seeds)
    noticed = [seed["noticed"] for seed in seeds]
    live = numbers["live"]
    gain = live["history"][1].rpartition(": ")[2]
    # The figure has them by rows.
    events = ", ".join(f"{event['event']} {event['seconds'] / 60:.0f}" for event in live["events"])
    return [
        "## In production",
        "",
        "`python -m benchmarks.production`: employees' digits are asked for, then pupils' (MNIST as 49 means).",
        f"In {len(seeds)} orders, with a look at each 250 rows: {false} false alarms; the shift was noticed within",
        f"{max(noticed)} rows. `--live`, once with all processes, by minutes: {events}.",
        f"The challenger's gain: {gain} points.",
        "",
        "![Accuracy and shift over the rows sent](images/production.png)",
    ]


SECTIONS: dict[str, Callable[[Found], list[str]]] = {
    "agent": _learning,
    "scaling": _scaling,
    "serving": _serving,
    "production": _production,
}


def main() -> None:
    paths = {name: RESULTS / f"{name}.json" for name in SECTIONS}
    results = {name: json.loads(path.read_bytes()) for name, path in paths.items() if path.exists()}
    if "agent" in results:
        draw_learning(results["agent"]).savefig(IMAGES / "benchmark_agent.png", dpi=110)
    durable.replace_file(PAGE, text(results).encode())
    print(f"{PAGE}: {', '.join(results) or 'no results yet'}")


if __name__ == "__main__":
    main()
