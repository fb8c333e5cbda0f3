"""Draw the plots of docs/benchmarks.md and of `benchmarks.controller`, each from one result."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def _pyplot() -> Any:
    """Import matplotlib when something is drawn: a GPU machine may measure without it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)


def returns(found: dict[str, Any], path: Path) -> None:
    """Draw the returns of agents while learning: mean over rng seeds, and the range of all."""
    tasks = found["tasks"]
    size = (4.2 * len(tasks), 3.4)
    figure, axes = _pyplot().subplots(1, len(tasks), figsize=size, squeeze=False, layout="constrained")
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
        label = f"PPO {seed}, {curve['seconds'] / 60:.0f} min"
        axis.plot([n / 1000 for n in curve["episodes"]], curve["score"], marker="o", ms=3, label=label)
    for number, (name, score) in enumerate(found["validation"].items()):
        axis.axhline(score, color=f"C{number + 5}", ls="--", lw=1.2, label=name.replace("_", " "))
    axis.set(xlabel="thousand host trainings", ylabel="score on validation tasks (points)")
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, path)


def hosts(found: dict[str, Any], path: Path) -> None:
    """Draw how much faster than plain loops hosts train together, by their number."""
    figure, axis = _pyplot().subplots(figsize=(5, 3.8), layout="constrained")
    for name in dict.fromkeys(row["case"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["case"] == name]
        axis.plot([row["envs"] for row in rows], [row["speedup"]["auto"] for row in rows], marker="o", label=name)
    axis.axhline(1.0, color="grey", ls=":", lw=1)
    axis.set_xscale("log", base=2)
    axis.set(xlabel="hosts", ylabel="speed-up over the faster plain loop", title="Training without seeds")
    axis.legend(fontsize=8)
    _save(figure, path)


IMAGES = Path("docs/images")
DRAWN: dict[str, tuple[Callable[[dict[str, Any], Path], None], Path]] = {
    "agent": (returns, IMAGES / "benchmark_agent.png"),
    "population": (hosts, IMAGES / "benchmark_hosts.png"),
}
