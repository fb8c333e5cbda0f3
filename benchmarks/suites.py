"""docs/suites.md from measured headrooms: what there is to win on every suite, before anything is learned.

simic headroom patches -S rng_seed=2 --out benchmarks/results/headroom/patches.json    # and so on
python -m benchmarks.suites
"""

from pathlib import Path

from simic.evaluation.endpoints import COMMON, ORACLE_TASK
from simic.evaluation.page import GROUPS, SEARCHES, interval
from simic.evaluation.result import read_headroom
from simic.evaluation.static_baselines import EVERYWHERE, FINE_TUNED

RESULTS, PAGE = Path("benchmarks/results/headroom"), Path("docs/suites.md")
ROWS = ("static", COMMON, ORACLE_TASK, "patient", "linear classifier", FINE_TUNED)
INTRODUCTION = """# Suites

Written by `python -m benchmarks.suites` from the results of `simic headroom`. Scores are points on test splits of
held-out tasks; brackets are 95 % intervals over tasks. A schedule fixes slot, blueprint and step in advance: the common
one is the best on training tasks, the oracle picks one per task (or kind) on other hosts than those it is scored on.
`tables`, `images` and `texts` are not measured.
"""


def section(path: Path) -> str:
    """One measurement: a row for each policy, a column for each group of tasks."""
    found = read_headroom(path)
    seeds = "any number of seeds" if found.max_seeds is None else f"{found.max_seeds} seed at most"
    price = f", price {found.price:g}" if found.price else ""
    (primary, standings), *others = found.standings.items()
    groups = [standings, *(other for _, other in others)]
    gaps = "; ".join(f"{GROUPS[name]}: {interval(found.standings[name].gap)}" for name in found.standings)
    lines = [
        f"## {path.stem.replace('_', ', ')}: {seeds}{price}",
        "",
        f"{found.host.family}/{found.host.preset}, {found.host.params:,} parameters; {len(found.schedules)} schedules; "
        f"common: {found.schedules[found.common]} ({found.common_cost.trainings} trainings). Gap between it and the "
        f"oracle per task, {gaps}.",
        "",
        f"| policy | {GROUPS[primary]} ({standings.tasks}) | over common |"
        + "".join(f" {GROUPS[name]} ({other.tasks}) |" for name, other in others),
        f"|---|--:|--:|{'--:|' * len(others)}",
    ]
    everywhere = [name for name in found.floors if name.endswith(EVERYWHERE.format(""))]
    sizes = [name for name in found.floors if name not in (*ROWS, *everywhere)]
    best = max(sizes, key=lambda name: standings.policies[name].score.estimate, default=None)
    for name in (*(name for name in ROWS if name in standings.policies), *everywhere, *([best] if best else [])):
        first, *rest = (f"{group.policies[name].score.estimate:.1f}" for group in groups)
        lines.append(f"| {' | '.join([name, first, interval(standings.policies[name].over_common), *rest])} |")
    searched = zip(*(group.random_search for group in groups), strict=True)
    shown = [
        f"{' / '.join(f'{each:.1f}' for each in best)} ({k})" for k, best in enumerate(searched, 1) if k in SEARCHES
    ]
    lines += ["", f"Random search, the best of k trainings by validation: {', '.join(shown)}."]
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    parts = [INTRODUCTION, *(section(path) + "\n" for path in sorted(RESULTS.glob("*.json")))]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
