"""Write headroom in words and tables: the page of a suite."""

from collections.abc import Sequence

import numpy as np

from simic.evaluation.endpoints import COMMON, ORACLE_TASK, PATIENT, TUNED
from simic.evaluation.intervals import Interval
from simic.evaluation.result import HeadroomReport, Standings

GROUPS = {
    "train": "its test split",
    "held_out": "held-out tasks of known kinds",
    "held_out_kinds": "tasks of held-out kinds",
    "outside": "tables and generators from outside the suite",
}
SEARCHES = (1, 2, 4, 8, 16)  # trainings
# A suite below it has nothing to decide.
LEAST_GAP_PCT = 5.0
# A suite below it has nothing to learn.
LEAST_RULE_GAP_PCT = 3.0


def page(report: HeadroomReport, title: str) -> str:
    """Write the page of a headroom, in Markdown; ``title`` names the suite."""
    parts = [f"# Headroom of {title}", _setting(report)]
    for group, standings in report.standings.items():
        verdicts = " ".join([*rule_verdict(standings), verdict(standings)])
        parts += [
            f"## On {GROUPS[group]}",
            verdicts,
            _table(standings),
            _search(standings),
            _kinds(standings),
        ]
    return "\n\n".join([*parts, *_rules(report), *_floors(report)]) + "\n"


def rule_verdict(standings: Standings) -> list[str]:
    """Say what is left to learn above a hand rule, in one sentence; nothing where no such rule was played."""
    if standings.rule is None or standings.rule_gap is None:
        return []
    name = "tuned rule" if standings.rule == TUNED else f"{standings.rule} rule"
    sentence = f"The oracle per task is {interval(standings.rule_gap)} points above the {name}"
    if standings.rule_gap.estimate >= LEAST_RULE_GAP_PCT:
        return [f"{sentence}."]
    return [
        f"{sentence}: less than {LEAST_RULE_GAP_PCT:.0f}, so a hand rule leaves little to learn here."
    ]


def verdict(standings: Standings) -> str:
    """Say whether there is anything to decide, in one sentence."""
    gap = standings.gap
    points = f"{interval(gap)} points above the best common schedule"
    sentence = f"The oracle per task is {points} on {standings.tasks} tasks"
    if gap.low >= LEAST_GAP_PCT:
        return f"{sentence}: decisions matter here."
    if gap.estimate >= LEAST_GAP_PCT:
        return f"{sentence}: decisions seem to matter, but the interval reaches below {LEAST_GAP_PCT:.0f}."
    return f"{sentence}: one schedule for all is nearly as good, so there is little to decide."


def interval(value: Interval) -> str:
    """Write an estimate and its ends: ``+9.1 [5.2, 13.0]``."""
    return f"{value.estimate:+.1f} [{value.low:.1f}, {value.high:.1f}]"


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[list[str]]:
    """Pad the cells of each column to one width; the first ``left`` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Write rows under a head as a Markdown table, in columns that also align as plain text."""
    head, *lines = aligned(rows, left=1)
    right = ["-" * (len(cell) + 1) + ":" for cell in head[1:]]
    rule = ["-" * (len(head[0]) + 2), *right]
    return "\n".join([_line(head), f"|{'|'.join(rule)}|", *map(_line, lines)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _setting(report: HeadroomReport) -> str:
    seeds = (
        "any number of seeds" if report.max_seeds is None else f"at most {report.max_seeds} seed(s)"
    )
    priced = (
        f", {report.price:g} points for a bare host's worth of parameters" if report.price else ""
    )
    return (
        f"Host {report.host.family}/{report.host.preset}, {report.host.params} parameters, {report.host.slots} slots; "
        f"{seeds}, up to {report.param_budget:g} times the host's parameters{priced}. "
        f"{len(report.schedules)} schedules. "
        f"The common one, “{report.schedules[report.common]}”, was the best on the tasks of training "
        f"({report.common_cost} host trainings); every schedule was played twice on every held-out task "
        f"({report.grid_cost} host trainings). Scores are points on test splits; brackets are 95 % intervals."
    )


def _table(standings: Standings) -> str:
    first = [name for name in ("static", COMMON, ORACLE_TASK) if name in standings.policies]
    rest = sorted(standings.policies.keys() - set(first))
    cells = [("policy", "score", "over the common schedule", "parameters")]
    for name in (*first, *rest):
        row = standings.policies[name]
        cells.append(
            (name, f"{row.score.estimate:.1f}", interval(row.over_common), f"{row.params:,.0f}")
        )
    return markdown(cells)


def _search(standings: Standings) -> str:
    shown = [k for k in SEARCHES if k <= len(standings.random_search)]
    scores = ", ".join(f"{standings.random_search[k - 1]:.1f} with {k}" for k in shown)
    return f"Random search, the best of k trainings by validation: {scores}."


def _kinds(standings: Standings) -> str:
    names = [
        name
        for name in ("static", COMMON, TUNED, PATIENT, ORACLE_TASK)
        if name in standings.policies
    ]
    rows = [
        [kind, *(f"{scores[name]:.1f}" for name in names)]
        for kind, scores in standings.by_kind.items()
    ]
    return markdown([["kind", *names], *rows])


def _rules(report: HeadroomReport) -> list[str]:
    if report.tuned is None:
        return []
    tuned = report.tuned
    cost = (
        f"The best of {tuned.configurations} configurations on tasks of training ({tuned.trainings} host trainings), "
        "for each number of epochs:"
    )
    return [
        "## The tuned rule",
        cost,
        "\n".join(f"- {rule.epochs}: {rule}" for rule in tuned.rules),
    ]


def _floors(report: HeadroomReport) -> list[str]:
    if not report.floors:
        return []
    cells = [("network", "test accuracy", "parameters")]
    for name, floor in report.floors.items():
        cells.append(
            (name, f"{np.mean(floor.test_accuracy_pct):.1f}", f"{np.mean(floor.params):,.0f}")
        )
    return ["## Networks that nobody grew, on the same tasks", markdown(cells)]
