"""docs/suites.md from measured headrooms: what there is to win on every suite, before anything is learned.

simic headroom patches -S rng_seed=2 --out benchmarks/results/headroom/patches.json    # and so on
python -m benchmarks.suites
"""

from pathlib import Path

from simic.evaluation.endpoints import COMMON, ORACLE_KIND, ORACLE_TASK
from simic.evaluation.page import GROUPS, SEARCHES, interval, verdict
from simic.evaluation.result import read_headroom

RESULTS, PAGE = Path("benchmarks/results/headroom"), Path("docs/suites.md")
ROWS = (
    "static",
    COMMON,
    ORACLE_KIND,
    ORACLE_TASK,
    "patient",
    "gradient",
    "heuristic",
    "random_legal",
    "linear classifier",
)
FEW = ("static", COMMON, ORACLE_TASK, "patient")
INTRODUCTION = """# Suites

Written by `python -m benchmarks.suites` from the results of `simic headroom`. Scores are points on test splits of
held-out tasks; brackets are 95 % intervals over tasks. A schedule fixes slot, blueprint and step in advance: the common
one is the best on training tasks, the oracle picks one per task (or kind) on other hosts than those it is scored on.
"""


def section(path: Path) -> str:
    """One measurement."""
    found = read_headroom(path)
    seeds = "any number of seeds" if found.max_seeds is None else f"{found.max_seeds} seed at most"
    price = f", price {found.price:g}" if found.price else ""
    lines = [
        f"## {path.stem.replace('_', ', ')}: {seeds}{price}",
        "",
        f"{found.host.family}/{found.host.preset}, {found.host.params:,} parameters; {len(found.schedules)} schedules; "
        f"common: {found.schedules[found.common]} ({found.common_cost.trainings} trainings); grid: "
        f"{found.grid_cost.trainings} trainings.",
    ]
    for group, standings in found.standings.items():
        rows = ROWS if group != "held_out_kinds" else FEW
        names = [name for name in rows if name in standings.policies]
        sizes = [name for name in found.floors if name not in ROWS]
        best = max(sizes, key=lambda name: standings.policies[name].score.estimate, default=None)
        searched = ", ".join(
            f"{standings.random_search[k - 1]:.1f} ({k})" for k in SEARCHES if k <= len(standings.random_search)
        )
        lines += ["", f"{GROUPS[group].capitalize()}: {verdict(standings)}", ""]
        lines += ["| policy | score | over common | parameters |", "|---|--:|--:|--:|"]
        for name in [*names, *([best] if best else [])]:
            row = standings.policies[name]
            lines.append(f"| {name} | {row.score.estimate:.1f} | {interval(row.over_common)} | {row.params:,.0f} |")
        lines += ["", f"Random search (trainings): {searched}."]
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    parts = [INTRODUCTION, *(section(path) + "\n" for path in sorted(RESULTS.glob("*.json")))]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
