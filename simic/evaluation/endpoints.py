"""Place every policy between the best common schedule and the oracle per task: gap closed, worth of a search."""

from collections.abc import Mapping, Sequence

import numpy as np

from simic import params as params_module
from simic.envs.rewards import score
from simic.evaluation import search
from simic.evaluation.result import BLIND, LEARNED, Evaluation, Fixed, HeadroomReport, PerSeed, Standing, Standings
from simic.evaluation.statistics import Interval, Values, gap_closed, mean_interval, paired_difference, rows_by_task
from simic.growth.networks.tabular import TOGETHER
from simic.params import Params

COMMON, ORACLE_KIND, ORACLE_TASK = "best common schedule", "oracle per kind", "oracle per task"
TUNED, PATIENT = "tuned_rule", "patient"  # hand rules that look at each host, the better known first
PPO, ALL_AT_ONCE = "PPO", "all modules at once"  # as a result names them
RULES = {TUNED: "tuned hand rule", PATIENT: "untuned hand rule"}  # likewise
SEARCH = 8  # trainings of the random search beside them
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

Reached = PerSeed | Fixed  # results of a policy, or of a network, on every row


def settings(params: Params) -> str:
    """Return the sha256 of the params that headroom depends on, besides the data."""
    train = params.train.model_dump(mode="json")
    played = {"epochs": list(params.lengths), "eval_seeds": params.evaluate.eval_seeds}
    headroom = params.headroom.model_dump(mode="json", exclude={"gym"})
    return params_module.digest(params.rng_seed, {name: train[name] for name in SETTINGS}, headroom, played)


def scores(accuracy: Values, params: Values, headroom: HeadroomReport) -> Values:
    """Return the scores of networks on that report's hosts ``[R]``, or of every schedule on them ``[R, S]``, at its
    price.
    """
    host = np.array(headroom.bare or (headroom.host.params,) * len(headroom.rows), dtype=np.float64)
    host = host.reshape(-1, *[1] * (params.ndim - 1))
    return score(accuracy, (params - host) / host, 1, headroom.price)


def standings(headroom: HeadroomReport, policies: Mapping[str, Reached]) -> dict[str, Standings]:
    """Place the policies of the headroom, ``policies`` and what the table of schedules gives, by group of tasks."""
    everyone: dict[str, Reached] = {**headroom.policies, **headroom.floors, **policies}
    return {group: _of_group(headroom, everyone, group) for group in dict.fromkeys(t.group for t in headroom.tasks)}


def _of_group(headroom: HeadroomReport, policies: Mapping[str, Reached], group: str) -> Standings:
    units = _units(headroom, group)
    kinds = [headroom.tasks[headroom.rows[rows[0]]].kind for rows in units]
    choosing, test = _tables(headroom, units)
    sizes = _mean(np.array(headroom.params), units)
    rows = [np.array(table) for table in (headroom.val_pct, headroom.test_pct, headroom.params)]
    searched = search.random_search(scores(rows[0], rows[2], headroom), scores(rows[1], rows[2], headroom))
    searched = _mean(searched, units)

    def of_table(weights: Values) -> tuple[Values, float]:
        return (test * weights).sum(1), float((sizes * weights).sum(1).mean())

    schedules = np.eye(test.shape[1])
    placed = {
        COMMON: of_table(np.tile(schedules[headroom.common], (len(kinds), 1))),
        ORACLE_KIND: of_table(search.best_choices(choosing, kinds)),
        ORACLE_TASK: of_table(search.best_choices(choosing)),
    }
    for name, seeds in policies.items():
        accuracy, params = (np.array(column, dtype=np.float64) for column in (seeds.test_accuracy_pct, seeds.params))
        placed[name] = _mean(scores(accuracy, params, headroom), units), float(_mean(params, units).mean())
    common, oracle = placed[COMMON][0], placed[ORACLE_TASK][0]
    gap = paired_difference(oracle, common)
    rule = next((name for name in (TUNED, PATIENT) if name in placed), None)
    by_rule = placed[rule][0] if rule else None
    return Standings(
        rule=rule,
        rule_gap=None if by_rule is None else paired_difference(oracle, by_rule),
        tasks=sum(task.group == group for task in headroom.tasks),
        gap=gap,
        gap_undefined=""
        if gap.low > 0
        else f"oracle - common is {gap.estimate:.2f} [{gap.low:.2f}, {gap.high:.2f}] and may be 0",
        random_search=tuple(searched.mean(axis=0).round(4).tolist()),
        policies={
            name: Standing(
                score=mean_interval(reached),
                over_rule=None if by_rule is None else paired_difference(reached, by_rule),
                rule_share=None if by_rule is None else gap_closed(reached, by_rule, oracle),
                over_common=paired_difference(reached, common),
                share=gap_closed(reached, common, oracle),
                search_worth=search.search_worth(reached, searched),
                params=params,
            )
            for name, (reached, params) in placed.items()
        },
        by_kind={
            kind: {name: float(reached[[k == kind for k in kinds]].mean()) for name, (reached, _) in placed.items()}
            for kind in dict.fromkeys(kinds)
        },
    )


def oracle_schedules(headroom: HeadroomReport) -> list[int]:
    """Return the schedule ``[R]`` that the oracle per task plays on each row; of equals the first."""
    choosing = scores(np.array(headroom.choosing_val_pct), np.array(headroom.params), headroom)
    units = rows_by_task(dict(enumerate(headroom.rows)))
    chosen = {row: int(choosing[rows].mean(axis=0).argmax()) for rows in units for row in rows}
    return [chosen[row] for row in range(len(headroom.rows))]


def over_seeds(headroom: HeadroomReport, trained: Sequence[Reached], group: str) -> tuple[Values, Values, Values]:
    """Return scores on the tasks of a group: of policies trained with other seeds ``[S, T]``, of the common schedule
    and of the oracle per task ``[T]``.
    """
    units = _units(headroom, group)
    choosing, test = _tables(headroom, units)
    reached = [scores(np.array(each.test_accuracy_pct), np.array(each.params), headroom) for each in trained]
    oracle = (test * search.best_choices(choosing)).sum(axis=1)
    return np.stack([_mean(each, units) for each in reached]), test[:, headroom.common], oracle


def _tables(headroom: HeadroomReport, units: list[list[int]]) -> tuple[Values, Values]:
    """Return the scores of every schedule on the hosts that choose and on those that score ``[T, S]``."""
    tables = (np.array(table) for table in (headroom.choosing_val_pct, headroom.test_pct))
    choosing, test = (_mean(scores(table, np.array(headroom.params), headroom), units) for table in tables)
    return choosing, test


def _units(headroom: HeadroomReport, group: str) -> list[list[int]]:
    """Return the rows of each task of a group."""
    return rows_by_task({r: task for r, task in enumerate(headroom.rows) if headroom.tasks[task].group == group})


def _mean(values: Values, units: list[list[int]]) -> Values:
    """Return ``[T, …]`` from ``[R, …]``: the mean over the hosts of each task."""
    return np.stack([values[rows].mean(axis=0) for rows in units])


def metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return a run in about eight numbers, to be followed from run to run: those of the primary endpoint's tasks where
    nothing else is said; what is not defined is left out.
    """
    primary, *others = evaluation.standings.values()
    learned, blind = primary.policies.get(LEARNED), primary.policies.get(BLIND)
    if learned is None:
        return {}
    shares = {"gap_closed": learned.share, "blind_gap_closed": blind.share if blind else None}
    shares |= {"over_rule": learned.over_rule, "rule_gap_closed": learned.rule_share}
    if others and LEARNED in others[0].policies:
        elsewhere = others[0].policies[LEARNED]
        shares |= {"held_out_kinds_gap_closed": elsewhere.share, "held_out_kinds_over_rule": elsewhere.over_rule}
    numbers = {
        "score": learned.score.estimate,
        "over_common_schedule": learned.over_common.estimate,
        "gap": primary.gap.estimate,
        "search_worth_trainings": learned.search_worth.count,
        "params": learned.params,
        **{name: share.estimate for name, share in shares.items() if share is not None},
    }
    return {name: round(value, 4) for name, value in numbers.items()}


def said(evaluation: Evaluation) -> tuple[str, str]:
    """Say in a line each what the learned policy and those beside it reached, and which share of the gap that is."""
    primary = next(iter(evaluation.standings.values()))
    learned = primary.policies.get(LEARNED)
    if learned is None:
        return "the learned policy was not evaluated", "not measured"
    reached = {name: f"{name} {score.estimate:.1f}" for name, score in compared(primary).items()}
    reached[PPO] += f" points [{learned.score.low:.1f}, {learned.score.high:.1f}]"
    if learned.over_rule is not None and primary.rule is not None:
        over = learned.over_rule
        reached[RULES.get(primary.rule, "hand rule")] += f" ({over.estimate:+.1f} [{over.low:+.1f}, {over.high:+.1f}])"
    score = f"{', '.join(reached.values())}, on {primary.tasks} held-out tasks"
    if learned.share is None:
        return score, f"not defined: {primary.gap_undefined}"
    share = learned.share
    return score, (
        f"{100 * share.estimate:.0f} % closed [{100 * share.low:.0f}, {100 * share.high:.0f}] with one training; "
        f"random search needs {learned.search_worth}"
    )


def compared(standings: Standings) -> dict[str, Interval]:
    """Return the scores that a result is told by, under a reader's names, PPO first; a search has no interval."""
    searched = standings.random_search[SEARCH - 1 :][:1]
    ruled = {standings.rule: RULES.get(standings.rule, "hand rule")} if standings.rule else {}
    names = {LEARNED: PPO, **ruled, TOGETHER.name: ALL_AT_ONCE, COMMON: "common schedule"}
    names |= {"static": "host alone", ORACLE_TASK: "oracle"}
    scores = {said: standings.policies[name].score for name, said in names.items() if name in standings.policies}
    return scores | {f"best of {SEARCH} trainings": Interval(value, value, value) for value in searched}
