"""Place every policy beside the hand rule, the best common schedule and the oracle per task."""

from collections.abc import Mapping

import numpy as np

from simic.envs.rewards import score
from simic.evaluation.intervals import (
    Interval,
    Values,
    mean_interval,
    paired_difference,
    rows_by_task,
)
from simic.evaluation.result import (
    LEARNED,
    Evaluation,
    Fixed,
    HeadroomReport,
    PerSeed,
    Standing,
    Standings,
)
from simic.evaluation.search import best_choices, random_search
from simic.growth.networks.tabular import TOGETHER

COMMON = "best common schedule"
ORACLE_TASK = "oracle per task"
# Hand rules that look at every host, the better known first.
TUNED = "tuned_rule"
PATIENT = "patient"
# Names of policies for a reader.
PPO = "PPO"
ALL_AT_ONCE = "all modules at once"
RULES = {TUNED: "tuned hand rule", PATIENT: "untuned hand rule"}
# How many trainings the random search has that is shown beside policies.
SEARCH = 8
# What decides how hosts grow and are trained, whoever controls them.
SETTINGS = (
    "host",
    "episode_steps",
    "batches_per_epoch",
    "batch_size",
    "actions",
    "price",
    "host_optimizer",
    "lifecycle",
    "governor",
)

# Results of a policy, or of a network, on every row.
Results = PerSeed | Fixed


def scores(accuracy: Values, params: Values, headroom: HeadroomReport) -> Values:
    """Score networks at the price of a headroom.

    Args:
        accuracy: in points, of its hosts ``[R]`` or of every schedule on them ``[R, S]``.
        params: parameters of the same networks.
        headroom: the report.
    """
    # Growth is priced in parts of the bare host, which tasks of other widths have another size of.
    alike = (headroom.host.params,) * len(headroom.rows)
    host = np.array(headroom.bare or alike, dtype=np.float64)
    host = host.reshape(-1, *[1] * (params.ndim - 1))
    return score(accuracy, (params - host) / host, 1, headroom.price)


def standings(headroom: HeadroomReport, policies: Mapping[str, Results]) -> dict[str, Standings]:
    """Place policies beside those of the headroom and what its table of schedules gives, by group of tasks.

    Args:
        headroom: what needs no controller.
        policies: further results, by name.
    """
    results: dict[str, Results] = {**headroom.policies, **headroom.floors, **policies}
    groups = dict.fromkeys(task.group for task in headroom.tasks)
    return {group: _standings_of_group(headroom, results, group) for group in groups}


def _standings_of_group(
    headroom: HeadroomReport, results: Mapping[str, Results], group: str
) -> Standings:
    units = rows_of_tasks(headroom, group)
    kinds = np.array([headroom.tasks[headroom.rows[rows[0]]].kind for rows in units])

    # Schedules: the common one, the best of each task, and a random search.
    params = np.array(headroom.params)
    val = scores(np.array(headroom.val_pct), params, headroom)
    test = scores(np.array(headroom.test_pct), params, headroom)
    choosing = scores(np.array(headroom.choosing_val_pct), params, headroom)
    searched = mean_by_task(random_search(val, test), units)
    params_of_tasks = mean_by_task(params, units)
    scores_of_tasks = mean_by_task(test, units)
    best = best_choices(mean_by_task(choosing, units))
    common = np.eye(params.shape[1])[headroom.common]
    by_policy: dict[str, tuple[Values, float]] = {}
    for name, weights in ((COMMON, common), (ORACLE_TASK, best)):
        mean_params = float((params_of_tasks * weights).sum(1).mean())
        by_policy[name] = (scores_of_tasks * weights).sum(1), mean_params

    # Everything that was played or trained.
    for name, result in results.items():
        accuracy = np.array(result.test_accuracy_pct, dtype=np.float64)
        sizes = np.array(result.params, dtype=np.float64)
        by_policy[name] = (
            mean_by_task(scores(accuracy, sizes, headroom), units),
            float(mean_by_task(sizes, units).mean()),
        )

    # Compare all with the common schedule and with the better known hand rule.
    common_scores, _ = by_policy[COMMON]
    oracle_scores, _ = by_policy[ORACLE_TASK]
    rule = next((name for name in (TUNED, PATIENT) if name in by_policy), None)
    rule_scores = by_policy[rule][0] if rule else None
    return Standings(
        rule=rule,
        rule_gap=None if rule_scores is None else _gain(oracle_scores, rule_scores),
        tasks=sum(task.group == group for task in headroom.tasks),
        gap=_gain(oracle_scores, common_scores),
        random_search=tuple(searched.mean(axis=0).round(4).tolist()),
        policies={
            name: Standing(
                score=mean_interval(values).within(min(0.0, values.min()), 100.0),
                over_rule=None if rule_scores is None else _gain(values, rule_scores),
                over_common=_gain(values, common_scores),
                params=mean_params,
            )
            for name, (values, mean_params) in by_policy.items()
        },
        by_kind={
            kind: {
                name: float(values[kinds == kind].mean()) for name, (values, _) in by_policy.items()
            }
            for kind in dict.fromkeys(kinds.tolist())
        },
    )


def _gain(first: Values, second: Values) -> Interval:
    """Compute the mean of first − second; of a few tasks the interval ends where no mean of scores can lie beyond."""
    differences = first - second
    low = min(-100.0, differences.min())
    return paired_difference(first, second).within(low, max(100.0, differences.max()))


def oracle_schedules(headroom: HeadroomReport) -> list[int]:
    """Find the schedule ``[R]`` that the oracle per task plays on every row; of equals the first."""
    # Other hosts choose than those that score, else the choice would flatter itself.
    accuracy = np.array(headroom.choosing_val_pct)
    choosing = scores(accuracy, np.array(headroom.params), headroom)
    units = rows_by_task(dict(enumerate(headroom.rows)))
    chosen = {row: int(choosing[rows].mean(axis=0).argmax()) for rows in units for row in rows}
    return [chosen[row] for row in range(len(headroom.rows))]


def rows_of_tasks(headroom: HeadroomReport, group: str) -> list[list[int]]:
    """List the rows of each task of a group."""
    return rows_by_task(
        {r: task for r, task in enumerate(headroom.rows) if headroom.tasks[task].group == group}
    )


def mean_by_task(values: Values, units: list[list[int]]) -> Values:
    """Average ``[R, …]`` over the hosts of each task, ``[T, …]``; ``units`` as ``rows_of_tasks`` gives them."""
    # One host each, as in a large suite: there is nothing to average.
    if all(len(rows) == 1 for rows in units):
        return values[[row for [row] in units]]
    return np.stack([values[rows].mean(axis=0) for rows in units])


def metrics(evaluation: Evaluation) -> dict[str, float]:
    """Select the few numbers of a run that are followed from run to run.

    They are of the primary endpoint's tasks where the name tells no others; what is not defined is left out.
    """
    # The primary endpoint is on kinds of tasks that training knows; without the trained policy there is none.
    primary, *others = evaluation.standings.values()
    learned = primary.policies.get(LEARNED)
    if learned is None:
        return {}
    intervals = {
        "score": learned.score,
        "over_common_schedule": learned.over_common,
        "gap": primary.gap,
    }
    intervals |= {"over_rule": learned.over_rule, "rule_gap": primary.rule_gap}
    # How well it generalises: on kinds of tasks that training never saw.
    if others and LEARNED in others[0].policies:
        intervals["held_out_kinds_over_rule"] = others[0].policies[LEARNED].over_rule
    numbers = {
        name: interval.estimate for name, interval in intervals.items() if interval is not None
    }
    numbers["params"] = learned.params
    return {name: round(value, 4) for name, value in numbers.items()}


def compared(standings: Standings) -> dict[str, Interval]:
    """Select the scores that a result shows, under a reader's names, PPO first; a search has no interval."""
    searched = standings.random_search[SEARCH - 1 :][:1]
    rules = {standings.rule: RULES.get(standings.rule, "hand rule")} if standings.rule else {}
    names = {LEARNED: PPO, **rules, TOGETHER.name: ALL_AT_ONCE, COMMON: "common schedule"}
    names |= {"static": "host alone", ORACLE_TASK: "oracle"}
    scores = {
        label: standings.policies[name].score
        for name, label in names.items()
        if name in standings.policies
    }
    return scores | {
        f"best of {SEARCH} trainings": Interval(value, value, value) for value in searched
    }
