"""The plots of docs/benchmarks.md, each from one result."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def _pyplot() -> Any:
    """Imported when something is drawn: a GPU machine may measure without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)


def returns(found: dict[str, Any], path: Path) -> None:
    """Of agents while learning: mean over rng seeds, and the range of all."""
    tasks = found["tasks"]
    if not tasks:
        return
    figure, axes = _pyplot().subplots(
        1, len(tasks), figsize=(4.2 * len(tasks), 3.4), squeeze=False, layout="constrained"
    )
    for axis, (name, task) in zip(axes[0], tasks.items(), strict=True):
        for algorithm, row in task["rows"].items():
            curve = row["curve"]
            (line,) = axis.plot(curve["steps"], curve["mean"], label=algorithm)
            axis.fill_between(curve["steps"], curve["low"], curve["high"], color=line.get_color(), alpha=0.15, lw=0)
        axis.axhline(task["solved"], color="grey", ls=":", lw=1)
        axis.set(title=name, xlabel="environment steps")
        axis.legend(fontsize=7)
    axes[0][0].set_ylabel("return, last 20 episodes")
    _save(figure, path)


def curves(found: dict[str, Any], path: Path) -> None:
    """Draw validation scores of several trainings against episodes, with all that needs no controller as lines."""
    figure, axis = _pyplot().subplots(figsize=(7, 3.8), layout="constrained")
    for seed, curve in enumerate(found["curves"], 1):
        seconds = f"{curve['seconds'] / 60:.0f} min"
        axis.plot(
            [n / 1000 for n in curve["episodes"]], curve["score"], marker="o", ms=3, label=f"PPO {seed}, {seconds}"
        )
    for number, (name, score) in enumerate(found["validation"].items()):
        axis.axhline(score, color=f"C{number + 5}", ls="--", lw=1.2, label=name.replace("_", " "))
    axis.set(xlabel="thousand host trainings", ylabel="score on validation tasks (points)")
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, path)


def hosts(found: dict[str, Any], path: Path) -> None:
    """How much faster than plain loops by number of hosts, and where a whole iteration goes."""
    figure, (left, right) = _pyplot().subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for name in dict.fromkeys(row["case"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["case"] == name]
        left.plot([row["envs"] for row in rows], [row["speedup"]["auto"] for row in rows], marker="o", label=name)
    left.axhline(1.0, color="grey", ls=":", lw=1)
    left.set_xscale("log", base=2)
    left.set(xlabel="hosts", ylabel="speed-up over the faster plain loop", title="Training without seeds")
    left.legend(fontsize=8)
    phases = [row for row in found["phases"] if row["seeds"]]
    _stack(right, [str(row["envs"]) for row in phases], [row["seconds"] for row in phases], share=True)
    right.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
    right.set(xlabel="hosts, with seeds", ylabel="share of an iteration", title="Phases, reference case")
    _save(figure, path)


def operations(found: dict[str, Any], path: Path) -> None:
    """Milliseconds per host and minibatch by kind of operation."""
    figure, axis = _pyplot().subplots(figsize=(10, 3.8), layout="constrained")
    names = [f"{row['case']}\n{'with' if row['seeds'] else 'no'} seeds" for row in found["rows"]]
    bars = [{kind: 1000 * value / row["envs"] for kind, value in row["seconds"].items()} for row in found["rows"]]
    _stack(axis, names, bars)
    axis.set(ylabel="ms per host and minibatch")
    _save(figure, path)


def _stack(axis: Any, names: list[str], bars: list[dict[str, float]], share: bool = False) -> None:
    """One bar each, of parts one upon the other."""
    bottom = [0.0] * len(bars)
    for part in dict.fromkeys(part for bar in bars for part in bar):
        values = [bar.get(part, 0.0) / (sum(bar.values()) if share else 1.0) for bar in bars]
        axis.bar(names, values, bottom=bottom, label=part)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    axis.legend(fontsize=7)


IMAGES = Path("docs/images")
DRAWN: dict[str, tuple[Callable[[dict[str, Any], Path], None], Path]] = {
    "agent": (returns, IMAGES / "benchmark_agent.png"),
    "population": (hosts, IMAGES / "benchmark_hosts.png"),
    "host_profile": (operations, IMAGES / "benchmark_operations.png"),
}
