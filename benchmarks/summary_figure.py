"""Draw the README's figure, docs/images/result.png, from benchmarks/results/summary.csv.

python -m benchmarks.summary_figure
"""

import csv
from pathlib import Path

from matplotlib.figure import Figure

SOURCE = Path("benchmarks/results/summary.csv")
IMAGE = Path("docs/images/result.png")


def draw(rows: list[dict[str, str]]) -> Figure:
    """Draw a dot for each policy and group of tasks; learned ones in colour."""
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    axis = figure.subplots()
    # From below, as an axis counts: the last row is on top.
    for height, row in enumerate(rows):
        color = "tab:blue" if row["policy"].startswith("PPO") else "0.35"
        known_kinds = float(row["known kinds"])
        new = float(row["new kinds"])
        axis.plot(
            [known_kinds, new], [height, height], color=color, linewidth=1, alpha=0.4, zorder=1
        )
        axis.scatter(known_kinds, height, color=color, s=42, zorder=2)
        axis.scatter(new, height, facecolor="white", edgecolor=color, s=42, zorder=2)
    # The legend is of dots outside of the view.
    axis.scatter([], [], color="0.35", label="kinds seen in training")
    axis.scatter([], [], facecolor="white", edgecolor="0.35", label="new kinds")
    axis.set_yticks(range(len(rows)), [_label(row) for row in rows])
    axis.set_xlabel("test accuracy in points, mean over 216 new tasks")
    axis.grid(axis="x", alpha=0.3)
    axis.legend(loc="upper left", frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _label(row: dict[str, str]) -> str:
    parameters = row["parameters"]
    return f"{row['policy']}  ({int(parameters):,} parameters)" if parameters else row["policy"]


def main() -> None:
    """Read the table and write the figure."""
    with SOURCE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    draw(rows).savefig(IMAGE, dpi=110)


if __name__ == "__main__":
    main()
