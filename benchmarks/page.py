"""docs/benchmarks.md and docs/history/measurements.md, written from benchmarks/results/*.json alone.

python -m benchmarks.page
"""

import json
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from benchmarks import figures
from simic import durable

RESULTS = Path("benchmarks/results")
PAGE, DETAILS = Path("docs/benchmarks.md"), Path("docs/history/measurements.md")


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


def text(page: Path, results: dict[str, dict[str, Any]]) -> str:
    """One of the two pages, of the results that are there, by name of their file."""
    title, introduction, sections = PAGES[page]
    parts = [f"# {title}", "", *introduction]
    for name, section in sections.items():
        if name in results:
            parts += ["", *section(results[name]), "", _measured(results[name]["provenance"])]
    return "\n".join(parts) + "\n"


def _image(page: Path, name: str, what: str) -> str:
    """The figure of a result, by its path from the page."""
    return f"![{what}]({os.path.relpath(figures.DRAWN[name][1], page.parent)})"


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
        "`python -m benchmarks.agent run`, then `report`. All have the same environments, network sizes, rollouts and",
        "grid of learning rates, tuned on separate seeds; all else is each library's default. The comparison favours",
        "us: our design, and the length and seeds of Acrobot, were chosen on these tasks and seeds",
        "([experiments](history/experiments.md)). *Final return*: mean of greedy episodes, by rng seed. *Not behind*:",
        "the 95 % Welch interval of the difference lies above −5 % of the solve threshold.",
    ]
    tasks = found["tasks"].items()
    rows = [
        (f"{name}, {task['solved']:g}", *_algorithm(algorithm, row, _digits(task)))
        for name, task in tasks
        for algorithm, row in task["rows"].items()
    ]
    head = (
        "task, solved at",
        "algorithm",
        "rng seeds",
        "learning rate",
        "final return",
        "solved",
        "median steps to solve",
    )
    lines += ["", *table((*head, "steps/s"), rows), ""]
    for name, task in tasks:
        lines += [_verdict(name, pair, task["margin"], _digits(task)) for pair in task["pairs"] if "low" in pair]
    return [*lines, "", _image(PAGE, "agent", "Returns while learning")]


def _digits(task: dict[str, Any]) -> int:
    return 1 if abs(task["solved"]) > 10 else 3


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


def _verdict(task: str, pair: dict[str, Any], margin: float, digits: int) -> str:
    word = "not behind" if pair["not_behind"] else "not shown to be level"
    difference, low, high = (f"{pair[name]:+.{digits}f}" for name in ("difference", "low", "high"))
    interval = f"{difference}, 95 % interval {low} … {high}"
    return f"- {task}, {pair['ours']} − {pair['theirs']}: {interval}; {word} (margin −{margin:g})"


def _bandits(found: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for task in found["tasks"].values():
        name = f"{task['pulls']} pulls of {task['arms']} arms"
        published = ", ".join(f"{who} {value}" for who, value in task["published"].items())
        rows += [(name, f"published: {published}", "", "", "", "", "")]
        if "optimum" in task:
            rows.append((name, "optimum (exact)", "", "", f"{task['optimum']:.2f}", "", ""))
        for who, row in task["baselines"].items():
            label = f"UCB1, constant {task['ucb1_constant']:g}" if who == "UCB1" else who
            rows.append((name, label, "", "", _with_error(row["return"]), _with_error(row["minus_ucb1"], "+"), ""))
        rows += [(name, who, *_trained(list(runs.values()))) for who, runs in task["runs"].items()]
    head = ("bandits", "player", "rng seeds", "episodes", "return", "minus UCB1", "CPU seconds")
    return [
        "## Learning to play bandits",
        "",
        f"`python -m benchmarks.bandits`: the bandits of RL² ([arXiv 1611.02779](https://arxiv.org/abs/1611.02779)), "
        f"{found['test_bandits']:,} common test bandits.",
        "Both agents are recurrent, with the same sizes, settings and training bandits, and are greedy when tested. ±",
        "is a standard error over bandits; of several trainings the mean, least and most.",
        "",
        *table(head, rows),
    ]


def _with_error(estimate: list[float], sign: str = "") -> str:
    return f"{estimate[0]:{sign}.2f} ± {estimate[1]:.2f}"


def _trained(runs: list[dict[str, Any]]) -> tuple[str, ...]:
    if len(runs) == 1:
        (run,) = runs
        results = _with_error(run["return"]), _with_error(run["minus_ucb1"], "+")
    else:
        returns, differences = ([run[name][0] for run in runs] for name in ("return", "minus_ucb1"))
        results = _spread(returns), _spread(differences, "+")
    seconds = median(run["seconds"] for run in runs)
    episodes = " or ".join(f"{count:,}" for count in sorted({run["episodes"] for run in runs}))
    return str(len(runs)), episodes, *results, f"{seconds:,.0f}"


def _spread(values: list[float], sign: str = "") -> str:
    return f"{fmean(values):{sign}.2f} ({min(values):{sign}.2f} … {max(values):{sign}.2f})"


def _speed(found: dict[str, Any]) -> list[str]:
    cartpole = found["cartpole"]
    ratios = {(row["envs"], row["starts_inside"]): f"{row['ratio']:.2f}" for row in found["updates"]}
    rows = [(str(envs), ratios[envs, False], ratios[envs, True]) for envs in dict.fromkeys(envs for envs, _ in ratios)]
    apart = max(abs(row["parameters"] / row["their_parameters"] - 1) for row in found["updates"])
    head = ("environments", "whole rows", "episodes start inside")
    return [
        "## Speed of the agent beside sb3-contrib RecurrentPPO",
        "",
        "`python -m benchmarks.agent_speed`.",
        "",
        "Training on CartPole-v1 (LSTM 64, 8 × 128, 4 epochs): "
        f"{cartpole['steps_per_second']:,.0f} environment steps/s against "
        f"{cartpole['their_steps_per_second']:,.0f}, ratio {cartpole['ratio']:.2f}.",
        "",
        "One update (observation 128, LSTM 512, eight heads, T = 150), our samples per second over theirs; the critic",
        f"has its own memory in both. Parameters equal to {100 * apart:.0f} %.",
        "",
        *table(head, rows),
    ]


def _health(found: dict[str, Any]) -> list[str]:
    return [
        "## What the health metrics of an update cost",
        "",
        f"`python -m benchmarks.agent_health`: {1000 * found['watching_seconds']:.1f} ms per update, "
        f"{100 * found['share_of_update']:.1f} % of the update and {100 * found['share_of_iteration']:.2f} % of an "
        "iteration of the default run.",
    ]


def _speedups(found: dict[str, Any]) -> list[str]:
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
        "host of params.yaml. In milliseconds: [measurements](history/measurements.md).",
        "",
        *_by_case(faster),
        "",
        "An epoch with seeds of every kind in two of three slots over one without, one thread:",
        "",
        *_by_case(seeds),
        "",
        _image(PAGE, "population", "Speed-up over plain loops, and phases, by number of hosts"),
    ]


def _by_case(values: dict[tuple[str, int], float]) -> list[str]:
    """A table of numbers: a row for each number of hosts, a column for each case."""
    cases = list(dict.fromkeys(case for case, _ in values))
    numbers = sorted({envs for _, envs in values})
    rows = [(str(n), *(f"{values[case, n]:.2f}" if (case, n) in values else "" for case in cases)) for n in numbers]
    return table(("hosts", *cases), rows)


def _population(found: dict[str, Any]) -> list[str]:
    limits = found["limits"]
    lines = [
        "## Many hosts at once",
        "",
        f"`python -m benchmarks.population` on {found['device']}. The fastest matrix product of this run did",
        f"{limits['gflops']:,.0f} GFLOP/s, the fastest copy {limits['gigabytes_per_second']:,.1f} GB/s. Times are "
        "milliseconds per minibatch of all",
        "hosts, at the best number of threads. *Of the peak*: the hosts' operations per second over those of the",
        "matrix product. *Speed-up*: over the faster plain loop.",
    ]
    for name in dict.fromkeys(row["case"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["case"] == name]
        columns = list(rows[0]["training_seconds"])
        head = ("hosts", *columns, "validation (auto)", "speed-up of auto", "at one thread each", "of the peak")
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
    lines += [
        "*Plain epochs a decision*: the time of one decision (an epoch with seeds, all validations, the policy and"
    ]
    lines += ["its learning) over that of an epoch of one plain host, timed before and after.", ""]
    lines += table(head, shares)
    return [*lines, "", f"Parts were measured at {', '.join(revisions)}."]


def _seeds(row: dict[str, Any]) -> str:
    return "with seeds" if row["seeds"] else "without seeds"


def _hosts(row: dict[str, Any], columns: list[str], peak: float) -> tuple[str, ...]:
    seconds = row["training_seconds"]
    return (
        str(row["envs"]),
        *(f"{1000 * seconds[name]:.1f}" for name in columns),
        f"{1000 * row['validation_seconds']['auto']:.0f}",
        f"{row['speedup']['auto']:.2f}",
        f"{row['one_thread_speedup']['auto']:.2f}",
        f"{100 * row['gflop'] / seconds['auto'] / peak:.0f} %",
    )


def _speed_gate(found: dict[str, Any]) -> list[str]:
    rows = [
        (
            f"{gate['case']}, {gate['envs']} hosts",
            gate["beside"],
            f"{gate['operations']:,}",
            f"{gate['median']:.2f}",
            ", ".join(f"{each:.2f}" for each in gate["ratios"]),
        )
        for gate in found["gates"]
    ]
    return [
        "## The ratios that CI watches",
        "",
        "`python -m benchmarks.speed_gate`: time of hosts trained one by one over ours, one thread, a fresh process",
        "each time. `tests/test_speed_gate.py` fails if ours issues 5 % more operations, or if a ratio is below half",
        "of the median: ratios differ between machines, the number of operations does not.",
        "",
        *table(("hosts", "one by one as", "operations", "median ratio", "every process"), rows),
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
        "https://ui.perfetto.dev. *Outside operations*: Python, and building the autograd graph.",
        "",
        *table(("hosts", "ms", "operations", *kinds, "largest"), rows),
        "",
        "How to read it: without seeds the reference host is its convolutions and the norms and pooling around them,",
        "for which torch's kernels were the fastest found. Small hosts spend their time on passes over the feature",
        "maps of all hosts (element by element, norms, pooling, copies). Seeds multiply operations rather than",
        "arithmetic: every slot, blueprint and operator is a group of its own, so copies, element-by-element work and",
        "time outside operations grow. What was tried is in [experiments](experiments.md).",
        "",
        "Milliseconds of a minibatch with one sample, which is almost all overhead:",
        "",
        *table(("hosts", *found["dispatch"][0]["seconds"]), least),
        "",
        _image(DETAILS, "host_profile", "Milliseconds per host by kind of operation"),
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
            f"{run['publish_seconds']:.1f}" if "publish_seconds" in run else "",
            f"{run['audit_seconds']:.1f}",
        )
        for run in found["growth"]
    ]
    head = ("iterations", "ms, early", "ms, late", "MB after each fifth", "MLflow calls", "publication, s", "audit, s")
    return [
        "## Everything around the hosts",
        "",
        "`python -m benchmarks.pipeline`.",
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
        *(_recording(found["recording"]) if "recording" in found else []),
        "An iteration of the default run, by processes × threads of each:",
        "",
        *table(("processes × threads", "seconds"), [(name, f"{s:.1f}") for name, s in found["processes"].items()]),
        "",
        "Commands with nothing to do:",
        "",
        *table(("command", "seconds"), [(f"`{name}`", f"{value:.2f}") for name, value in found["commands"].items()]),
        "",
        *(_chain(found["chain"]) if "chain" in found else []),
        "Parts were measured at " + ", ".join(f"{at} ({name})" for name, at in found["revisions"].items()) + ".",
    ]


def _chain(found: dict[str, float]) -> list[str]:
    alone = found["the stages alone"]
    rows = [(f"`{name}`", f"{seconds:.1f}", f"{seconds - alone:+.1f}") for name, seconds in found.items()]
    return [
        "A small run from nothing by each command:",
        "",
        *table(("command", "seconds", "beyond the stages alone"), rows),
        "",
    ]


def _recording(found: dict[str, Any]) -> list[str]:
    record, judge, play = (found[f"{part}_seconds"] for part in ("record", "live_audit", "collect"))
    return [
        f"Recording an iteration of {found['hosts']:,} hosts and {found['steps']} steps takes {record:.2f} s of the "
        f"processor, {100 * record / play:.1g} % of playing it (measured with {found['played']} hosts); "
        f"judging it live {judge:.2f} s.",
        "",
    ]


def _checkpointing(found: dict[str, Any]) -> list[str]:
    parts = {
        "state and manifest, synced": "save",
        "telemetry, synced": "telemetry",
        "hash chain": "chain",
        "wall times": "times",
    }
    rows = [
        (what, *(f"{100 * found[clock][name] / found[f'{clock}_seconds']:.2f} %" for clock in ("wall", "cpu")))
        for what, name in parts.items()
    ]
    rows.append(("all", *(f"{100 * found[f'{clock}_share']:.2f} %" for clock in ("wall", "cpu"))))
    return [
        "## What a checkpoint in every iteration costs",
        "",
        f"`python -m benchmarks.checkpointing`: {found['iterations']} iterations of the default run in one process, "
        f"{found['checkpoint_bytes'] / 1e6:.1f} MB each; shares of training.",
        "",
        *table(("part", "wall time", "processor time"), rows),
    ]


def _outage(found: dict[str, Any]) -> list[str]:
    rows = [
        (name, *(f"{100 * run['slower'][clock]:+.1f} %" for clock in ("wall", "cpu")))
        for name, run in found["runs"].items()
        if name != "none"
    ]
    rest = found["runs"]["none"]["rest"]["wall"]
    return [
        "## Training while MLflow is out of reach",
        "",
        f"`python -m benchmarks.outage`: {found['iterations']} iterations of small hosts, {rest:.0f} s without MLflow; "
        f"time inside MLflow's observer beyond that with a sound store. The weights are "
        f"{'the same in all' if found['same_models'] else 'NOT the same'}.",
        "",
        *table(("MLflow is", "slower by, wall time", "processor time"), rows),
    ]


def _mutants(found: dict[str, Any]) -> list[str]:
    rows = [
        (f"`{each['file'].removeprefix('simic/')}:{each['line']}`", f"`{_short(each['mutated'])}`", each["judgement"])
        for each in found["survivors"]
    ]
    return [
        "## Small defects that the tests notice",
        "",
        f"`make mutants`: {found['killed'] + found['timeout']} of {found['sample']} random one-place changes of the",
        f"agent, the environments and the trainer ({found['score']:.1%}) fail a test of the same room. The others:",
        "",
        *table(("where", "changed to", "judgement"), rows),
    ]


def _short(code: str) -> str:
    return (code if len(code) <= 60 else code[:59] + "…").replace("|", "\\|")


def _canary(found: dict[str, Any]) -> list[str]:
    row = tuple(f"{found[column]:.1f}" for column in ("worst_pct", "median_pct", "median_cpu_seconds"))
    return [
        "## What the audit's canary wins",
        "",
        f"`python -m benchmarks.canary`, {found['seeds']} seeds: points above chance on hosts it was not trained on.",
        "",
        *table(("least", "median", "median CPU s"), [row]),
    ]


def calibration_table(found: dict[str, Any]) -> list[str]:
    """Each number over the runs that measured it."""
    rows = [
        (name, str(each["runs"]), *(f"{each[column]:.3g}" for column in ("median", "p99", "worst", "limit", "now")))
        for name, each in found["statistics"].items()
    ]
    return table(("number", "runs", "median", "99 %", "worst", "worst × 1.5", "limit now"), rows)


def _calibration(found: dict[str, Any]) -> list[str]:
    alarms = Counter(check for run in found["findings"].values() for check in run)
    said = ", ".join(f"{check} in {count}" for check, count in sorted(alarms.items())) or "none"
    return [
        "## What clean runs show to the audit",
        "",
        f"`python -m benchmarks.calibration`, {found['runs']} runs. The 99th percentile and the worst are those of the",
        "side that a limit is on. Limits are no stricter than judged, and none is out of reach.",
        "",
        *calibration_table(found),
        "",
        f"Findings by the limits now, in so many of the runs: {said}. No run had: "
        + (", ".join(found["not_measured"]) or "none of the numbers is missing")
        + ".",
    ]


Sections = dict[str, Callable[[dict[str, Any]], list[str]]]
PAGES: dict[Path, tuple[str, list[str], Sections]] = {
    PAGE: (
        "Benchmarks",
        [
            "Written by `python -m benchmarks.page` from `benchmarks/results/*.json`. The machines were shared, so",
            "speeds are comparable within a table only. Bandits (`python -m benchmarks.bandits`), beside UCB1 and the",
            "optimum: [measurements](history/measurements.md).",
        ],
        {"agent": _learning, "population": _speedups},
    ),
    DETAILS: (
        "Measurements",
        [
            "Written by `python -m benchmarks.page`: the details behind [benchmarks](../benchmarks.md), and",
            "measurements that settled a default or show where time goes.",
        ],
        {
            "bandits": _bandits,
            "agent_speed": _speed,
            "agent_health": _health,
            "population": _population,
            "speed_gate": _speed_gate,
            "host_profile": _host_profile,
            "pipeline": _pipeline,
            "checkpointing": _checkpointing,
            "outage": _outage,
            "mutants": _mutants,
            "calibration": _calibration,
            "canary": _canary,
        },
    ),
}


def main() -> None:
    """Write both pages, and the figures of what was measured."""
    results = {path.stem: json.loads(path.read_bytes()) for path in sorted(RESULTS.glob("*.json"))}
    for name, (draw, path) in figures.DRAWN.items():
        if name in results:
            draw(results[name], path)
    for page in PAGES:
        durable.replace_file(page, text(page, results).encode())
    print(f"{PAGE}, {DETAILS}: {', '.join(results) or 'no results yet'}")


if __name__ == "__main__":
    main()
