"""docs/benchmarks.md out of benchmarks/results/*.json; run this module to write it. Numbers come from there alone.

python -m benchmarks.page
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import figures
from simic import durable

RESULTS, PAGE = Path("benchmarks/results"), Path("docs/benchmarks.md")


def provenance() -> dict[str, Any]:
    """Where and on what a result was measured."""
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


def write_result(path: Path, found: dict[str, Any]) -> None:
    """With its provenance, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"provenance": provenance()} | found, indent=1, allow_nan=False)
    durable.replace_file(path, (text + "\n").encode())


def text(results: dict[str, dict[str, Any]]) -> str:
    """The page of the results that are there, by name of their file."""
    parts = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks.page` from `benchmarks/results/*.json`. Machines are shared: speeds are",
        "compared inside a table whose columns were measured in turns, never between tables.",
    ]
    for name, section in SECTIONS.items():
        if name in results:
            parts += ["", *section(results[name]), "", _measured(results[name]["provenance"])]
    return "\n".join(parts) + "\n"


def _image(name: str, what: str) -> str:
    """The figure of a result."""
    return f"![{what}]({figures.DRAWN[name][1].relative_to(PAGE.parent)})"


def _measured(at: dict[str, Any]) -> str:
    return (
        f"Measured {at['date']} at {at['revision']}: {at['cores']} cores, {at['threads']} thread(s), load {at['load']} "
        f"at the end, torch {at['torch']}."
    )


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Markdown."""
    return ["| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *rows)]


def _learning(found: dict[str, Any]) -> list[str]:
    lines = [
        "## The agent beside its peers",
        "",
        "`python -m benchmarks.agent run`, then `report`. Everyone has the same environments, sizes, rollouts and grid",
        "of learning rates, each tuned on seeds of its own; what is not shared is as each library has it by default,",
        "so ours ends an update at `target_kl`, which the peers leave off. Our agent's design (critic, start of the",
        "memory, heads, single steps: docs/experiments.md) was chosen on these tasks and seeds, Acrobot's length and",
        "number of seeds after an undecided interval: an advantage of ours. Final return: mean of greedy episodes, by",
        "rng seed. *Not behind*: the 95 % Welch interval of the difference of means lies above −5 % of the solve",
        "threshold. Steps per second are for orientation, since runs came one after the other on a shared machine; the",
        "next section compares them in turns.",
    ]
    for name, task in found["tasks"].items():
        digits = 1 if abs(task["solved"]) > 10 else 3
        rows = [_algorithm(algorithm, row, digits) for algorithm, row in task["rows"].items()]
        head = ("algorithm", "rng seeds", "learning rate", "final return", "solved", "median steps to solve", "steps/s")
        lines += ["", f"### {name} (solved at {task['solved']:g})", "", *table(head, rows), ""]
        lines += [_verdict(pair, task["margin"], digits) for pair in task["pairs"] if "low" in pair]
    return [*lines, "", _image("agent", "Returns while learning")]


def _algorithm(name: str, row: dict[str, Any], digits: int) -> tuple[str, ...]:
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


def _verdict(pair: dict[str, Any], margin: float, digits: int) -> str:
    word = "not behind" if pair["not_behind"] else "not shown to be level"
    difference, low, high = (f"{pair[name]:+.{digits}f}" for name in ("difference", "low", "high"))
    interval = f"{difference}, 95 % interval {low} … {high}"
    return f"- {pair['ours']} − {pair['theirs']}: {interval}; {word} (margin −{margin:g})"


def _speed(found: dict[str, Any]) -> list[str]:
    cartpole = found["cartpole"]
    rows = [
        (
            str(row["envs"]),
            "yes" if row["starts_inside"] else "no",
            f"{row['samples_per_second']:,.0f}",
            f"{row['their_samples_per_second']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['parameters']:,} / {row['their_parameters']:,}",
        )
        for row in found["updates"]
    ]
    head = ("environments", "episodes start inside", "ours, samples/s", "theirs", "ratio", "parameters ours / theirs")
    return [
        "## Speed of the agent beside sb3-contrib RecurrentPPO",
        "",
        "`python -m benchmarks.agent_speed`; what is compared is said there.",
        "",
        "Training on CartPole-v1 (LSTM 64, 8 × 128, 4 epochs): "
        f"{cartpole['steps_per_second']:,.0f} environment steps/s against "
        f"{cartpole['their_steps_per_second']:,.0f}, ratio {cartpole['ratio']:.2f}.",
        "",
        "Update, observation 128, LSTM 512, eight heads, T = 150; one memory for actor and critic",
        "(`critic: shared`), as RecurrentPPO has it there:",
        "",
        *table(head, rows),
    ]


def _health(found: dict[str, Any]) -> list[str]:
    return [
        "## What watching the agent costs",
        "",
        f"`python -m benchmarks.agent_health`: {1000 * found['watching_seconds']:.1f} ms per update, "
        f"{100 * found['share_of_update']:.1f} % of the update and {100 * found['share_of_iteration']:.2f} % of an "
        "iteration of the default run.",
    ]


def _interval(found: dict[str, float], sign: str = "") -> str:
    return f"{found['estimate']:{sign}.1f} [{found['low']:.1f}, {found['high']:.1f}]"


def _growth(found: dict[str, Any]) -> list[str]:
    accuracy, minus = found["test_accuracy_pct"], found["learned_minus_pct"]
    rows = [
        (name, _interval(value), _interval(minus[name], "+") if name in minus else "")
        for name, value in accuracy.items()
    ]
    return [
        "## Learned growth against the baselines",
        "",
        f"`python -m benchmarks.learning`: committed test accuracy in points, mean and 95 % interval over "
        f"{found['training_seeds']} training seeds (each the mean of its evaluation seeds); differences are paired.",
        "",
        *table(("policy", "accuracy", "learned minus it"), rows),
    ]


def _choices(found: dict[str, Any]) -> list[str]:
    rows = [
        (
            name,
            _interval(change["greedy_pct"]),
            _interval(change["sampled_pct"]),
            _interval(change["minus_defaults_pct"], "+") if "minus_defaults_pct" in change else "",
        )
        for name, change in found["changes"].items()
    ]
    return [
        "## Which ratio, core and entropy setting is the default",
        "",
        "`python -m benchmarks.choices`: each change alone against params.yaml; committed test accuracy of the learned",
        f"policy in points, mean and 95 % interval over {found['training_seeds']} training seeds, paired. A change",
        f"becomes the default where its interval lies above 0; {len(rows) - 1} were looked at, and the intervals are",
        "not adjusted for their number.",
        "",
        *table(("change", "greedy", "sampled", "greedy minus the defaults"), rows),
    ]


def _population(found: dict[str, Any]) -> list[str]:
    limits = found["limits"]
    lines = [
        "## Many hosts at once",
        "",
        f"`python -m benchmarks.population` on {found['device']}; what is compared is said there. The fastest matrix",
        f"product of this run did {limits['gflops']:,.0f} GFLOP/s, the fastest copy "
        f"{limits['gigabytes_per_second']:,.1f} GB/s. Times are milliseconds per minibatch of all",
        "hosts; *of the peak*: operations of the hosts over those of the matrix product in that time; *speed-up*: the",
        "faster plain loop over ours.",
    ]
    for name in dict.fromkeys(row["case"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["case"] == name]
        columns = list(rows[0]["training_seconds"])
        head = ("hosts", *columns, "validation (auto)", "speed-up of auto", "of the peak")
        lines += ["", f"### {name}", "", *table(head, [_hosts(row, columns, limits["gflops"]) for row in rows])]
    phases = list(dict.fromkeys(name for row in found["phases"] for name in row["seconds"]))
    shares = [
        (
            f"{row['envs']} {_seeds(row)}",
            f"{row['decisions_per_second']:.1f}",
            f"{row['host_samples_per_second']:,.0f}",
            f"{1 / row['decisions_per_second'] / row['plain_epoch_seconds']:.2f}",
            *(f"{100 * row['seconds'][name] / row['total_seconds']:.1f} %" for name in phases),
        )
        for row in found["phases"]
    ]
    head = ("hosts", "decisions/s", "host samples/s", "plain epochs a decision", *phases)
    revisions = dict.fromkeys(each["revision"] for part in ("rows", "phases") for each in found[part])
    lines += ["", "### Where a whole iteration of the reference case goes", ""]
    lines += ["*Plain epochs a decision*: seconds of a decision over those of one plain host's epoch, timed before and"]
    lines += ["after; a decision is an epoch with seeds, all validations, the policy and its learning.", ""]
    lines += table(head, shares)
    lines += ["", f"Parts were measured at {', '.join(revisions)}.", ""]
    return [*lines, _image("population", "Speed-up over plain loops, and phases, by number of hosts")]


def _seeds(row: dict[str, Any]) -> str:
    return "with seeds" if row["seeds"] else "without seeds"


def _hosts(row: dict[str, Any], columns: list[str], peak: float) -> tuple[str, ...]:
    seconds = row["training_seconds"]
    return (
        str(row["envs"]),
        *(f"{1000 * seconds[name]:.1f}" for name in columns),
        f"{1000 * row['validation_seconds']['auto']:.0f}",
        f"{row['speedup']['auto']:.2f}",
        f"{100 * row['gflop'] / seconds['auto'] / peak:.0f} %",
    )


def _speed_gate(found: dict[str, Any]) -> list[str]:
    rows = [
        (
            f"{gate['case']}, {gate['envs']} hosts",
            gate["beside"],
            f"{gate['median']:.2f}",
            ", ".join(f"{each:.2f}" for each in gate["ratios"]),
        )
        for gate in found["gates"]
    ]
    return [
        "### The ratios that CI watches",
        "",
        "`python -m benchmarks.speed_gate`: seconds of hosts one by one over ours, one thread, every time in a fresh",
        "process. `tests/test_speed_gate.py` fails where a ratio is more than a fifth below the median.",
        "",
        *table(("hosts", "one by one as", "median", "every process"), rows),
    ]


def _host_profile(found: dict[str, Any]) -> list[str]:
    kinds = list(found["rows"][0]["seconds"])
    rows = [
        (
            f"{row['case']}, {row['envs']} hosts, {_seeds(row)}",
            f"{1000 * sum(row['seconds'].values()):.1f}",
            f"{row['operations']:,.0f}",
            *(f"{100 * row['seconds'][kind] / sum(row['seconds'].values()):.0f} %" for kind in kinds),
            row["largest"][0]["name"].removeprefix("aten::"),
        )
        for row in found["rows"]
    ]
    least = [
        (f"{row['case']}, {row['envs']}", *(f"{1000 * value:.2f}" for value in row["seconds"].values()))
        for row in found["dispatch"]
    ]
    return [
        "## What a minibatch of hosts is spent on",
        "",
        f"`python -m benchmarks.host_profile` on {found['device']}: torch's profiler, milliseconds of one minibatch of "
        "all hosts,",
        "operations in it, and shares by kind of operation; with `--trace FOLDER` also as traces for",
        "https://ui.perfetto.dev. *Outside operations* is Python and the building of the graph.",
        "",
        *table(("hosts", "ms", "operations", *kinds, "largest"), rows),
        "",
        "How to read it: without seeds the reference host is its convolutions and the norms and pooling around them,",
        "for which torch's kernels were the fastest found. Small hosts are passes over maps of all hosts (element by",
        "element, norms, pooling, copies), each streamed from memory once. Seeds multiply operations rather than",
        "arithmetic: every slot, blueprint and operator is a group of its own, so copies, element-by-element work and",
        "what is outside operations grow. What was tried against each is in [experiments](experiments.md).",
        "",
        "Milliseconds of a minibatch with one sample, where there is next to nothing to compute:",
        "",
        *table(("hosts", *found["dispatch"][0]["seconds"]), least),
        "",
        _image("host_profile", "Milliseconds per host by kind of operation"),
    ]


def _pipeline(found: dict[str, Any]) -> list[str]:
    shares, total = found["shares"], found["shares"]["total_seconds"]
    parts = sorted(shares["seconds"].items(), key=lambda part: -part[1])
    runs = [
        (
            f"{run['iterations']:,}",
            *(f"{1000 * run[f'{when}_seconds']:.1f}" for when in ("early", "late")),
            ", ".join(f"{megabytes:.0f}" for megabytes in run["megabytes"]),
            f"{run['mlflow_calls']:,}",
            f"{run['audit_seconds']:.1f}",
        )
        for run in found["growth"]
    ]
    head = ("iterations", "ms, early", "ms, late", "MB after each fifth", "MLflow calls", "audit, s")
    return [
        "## Everything around the hosts",
        "",
        "`python -m benchmarks.pipeline`; what is measured is said there.",
        "",
        f"The train stage of the default run, {shares['iterations']} iterations, of which "
        f"{100 * (1 - shares['seconds']['hosts'] / total):.1f} % is not the hosts:",
        "",
        *table(("part", "share of its time"), [(name, f"{100 * value / total:.1f} %") for name, value in parts]),
        "",
        "Runs of small hosts, an iteration early and late:",
        "",
        *table(head, runs),
        "",
        "An iteration of the default run, by processes × threads of each:",
        "",
        *table(("processes × threads", "seconds"), [(name, f"{s:.1f}") for name, s in found["processes"].items()]),
        "",
        "Commands with nothing to do:",
        "",
        *table(("command", "seconds"), [(f"`{name}`", f"{value:.2f}") for name, value in found["commands"].items()]),
        "",
        "Parts were measured at " + ", ".join(f"{at} ({name})" for name, at in found["revisions"].items()) + ".",
    ]


SECTIONS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "agent": _learning,
    "agent_speed": _speed,
    "agent_health": _health,
    "learning": _growth,
    "choices": _choices,
    "population": _population,
    "speed_gate": _speed_gate,
    "host_profile": _host_profile,
    "pipeline": _pipeline,
}


def main() -> None:
    """Write the page, and the figure of the agent if it was measured."""
    results = {path.stem: json.loads(path.read_bytes()) for path in sorted(RESULTS.glob("*.json"))}
    for name, (draw, path) in figures.DRAWN.items():
        if name in results:
            draw(results[name], path)
    durable.replace_file(PAGE, text(results).encode())
    print(f"{PAGE}: {', '.join(name for name in SECTIONS if name in results) or 'no results yet'}")


if __name__ == "__main__":
    main()
