"""Derive every number of an evaluation again from its values per host, with the functions that made it."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from simic.audit.record import RunRecord
from simic.evaluation import endpoints, gym_evaluation
from simic.evaluation.evaluate import controller_trainings, summary
from simic.evaluation.gym_evaluation import GymEvaluation
from simic.evaluation.intervals import PairedComparison, compare_with_all
from simic.evaluation.result import LEARNED, Case, Evaluation, HeadroomReport
from simic.telemetry.curves import OF_EPISODES, OF_UPDATES, Curves
from simic.telemetry.rows import UpdateRow

ROUNDING = 1e-9  # relative, and absolute near 0: sums in the order of another version of a library


def derived_headroom(headroom: HeadroomReport) -> HeadroomReport:
    """Derive the choice of the common schedule, the standings and the costs of a headroom again from its tables."""
    # The choice comes first: standings and costs below are those of the chosen schedule.
    search = np.array(headroom.search_scores)
    chosen = headroom.model_copy(update={"common": int(search.mean(axis=0).argmax())})
    changes = {
        # Costs are counts of host trainings, so the sizes of the tables must give them exactly.
        "common_cost": search.size,
        "grid_cost": 2 * np.size(headroom.test_pct),  # hosts that choose, and hosts that score
        "standings": endpoints.standings(chosen, {}),
        # Reports of other lengths have tables of their own, and so a choice of their own.
        "others": {name: derived_headroom(report) for name, report in headroom.others.items()},
    }
    return chosen.model_copy(update=changes)


@lru_cache(maxsize=1)  # two checks and the report's first line ask for it
def derived_evaluation(run: RunRecord) -> Evaluation:
    """Derive means, intervals, comparisons, standings, scores and counts of an evaluation of growth again."""
    evaluation = run.evaluation
    headroom = run.headroom
    assert evaluation is not None and headroom is not None  # callers ask for both
    seeds = {name: policy.per_seed for name, policy in evaluation.policies.items()}
    # Headroom brings its own policies, so that only the trained ones are added.
    trained = {name: values for name, values in seeds.items() if name not in headroom.policies}
    accuracies = {name: values.test_accuracy_pct for name, values in seeds.items()}
    # Other lengths were measured in other episodes: each is placed by the headroom of its own length. One that headroom
    # lacks is left out, which is a difference (X8).
    lengths = {
        name: result.model_copy(
            update={
                "epochs": headroom.others[name].epochs,
                "standings": endpoints.standings(headroom.others[name], result.per_seed),
            }
        )
        for name, result in evaluation.others.items()
        if name in headroom.others
    }
    # Machine, actions and values per host stay as recorded: replay and seals answer for them.
    changes = {
        # From params and tables alone: a number copied from the report would confirm itself.
        "controller_trainings": controller_trainings(run.params),
        "rng_seed": run.params.rng_seed,
        "eval_seeds": len(evaluation.rows),
        "episode_steps": headroom.epochs,
        # Without the prepared data nobody can count again, and the recorded number stays.
        **({"test_samples": run.meta.samples["test"]} if run.meta else {}),
        "policies": {
            name: summary(values, evaluation.host.params, evaluation.rng_seed)
            for name, values in seeds.items()
        },
        "comparisons": _compare_again(accuracies, evaluation),
        "standings": endpoints.standings(headroom, {**trained, **evaluation.static_final}),
        "others": lengths,
        "cases": tuple(_derived_case(case, evaluation, headroom) for case in evaluation.cases),
    }
    return evaluation.model_copy(update=changes)


def _compare_again(
    values: Mapping[str, Sequence[float]], evaluation: Evaluation | GymEvaluation
) -> tuple[PairedComparison, ...]:
    """Compare the learned policy with every other, in the order that is recorded: JSON has sorted the policies."""
    # The order decides no number here, but places are compared one by one, so it must be the recorded one.
    order = dict.fromkeys([*(comparison.second for comparison in evaluation.comparisons), *values])
    ordered = {name: values[name] for name in order if name in values}
    return compare_with_all(LEARNED, ordered, evaluation.rng_seed)


def _derived_case(case: Case, evaluation: Evaluation, headroom: HeadroomReport) -> Case:
    """Derive the scores of an episode that is shown."""
    seeds = evaluation.policies[LEARNED].per_seed
    params = np.array(seeds.params, dtype=np.float64)
    # Schedules of the same host are scored with the same headroom: only then is the gain of the case one of policies.
    learned = endpoints.scores(np.array(seeds.test_accuracy_pct), params, headroom)
    schedules = endpoints.scores(np.array(headroom.test_pct), np.array(headroom.params), headroom)
    # The oracle's choice was made on other hosts than those shown, so that it cannot flatter itself.
    oracle = endpoints.oracle_schedules(headroom)[case.row]
    scores = {
        "score": float(learned[case.row]),
        "common": float(schedules[case.row, headroom.common]),
        "oracle": headroom.schedules[oracle],
        "oracle_score": float(schedules[case.row, oracle]),
    }
    return case.model_copy(update=scores)


def derived_gym(run: RunRecord) -> GymEvaluation:
    """Derive means, intervals, comparisons and counts of an evaluation of a Gymnasium environment again."""
    evaluation = run.gym
    assert evaluation is not None  # callers ask for it
    # The checkpoint knows how many steps it had learned from; without it the recorded count stays.
    checkpoint = (run.checkpoints or {}).get(evaluation.checkpoint)
    scores = {name: policy.per_seed for name, policy in evaluation.policies.items()}
    returns = {name: values.returns for name, values in scores.items()}
    changes = {
        "rng_seed": run.params.rng_seed,
        "eval_seeds": run.params.evaluate.eval_seeds,
        **({"env_steps": checkpoint.manifest.scalars["env_steps"]} if checkpoint else {}),
        "policies": {
            name: gym_evaluation.summary(values, evaluation.rng_seed)
            for name, values in scores.items()
        },
        "comparisons": _compare_again(returns, evaluation),
    }
    return evaluation.model_copy(update=changes)


def derived_metrics(run: RunRecord) -> dict[str, dict[str, float]]:
    """Derive the numbers of reports/metrics.json and telemetry/metrics.json again, by place."""
    # A place without tables gets no numbers, so that a file that is there nevertheless is noticed (X7).
    metrics: dict[str, dict[str, float]] = {}
    if run.evaluation is not None and run.headroom is not None:
        metrics["reports/metrics.json"] = endpoints.metrics(derived_evaluation(run))
    elif run.gym is not None:
        metrics["reports/metrics.json"] = json.loads(gym_evaluation.metrics(derived_gym(run)))
    if "best_iteration" in run.updates:
        metrics["telemetry/metrics.json"] = json.loads(_curves(run).metrics())
    return metrics


def _curves(run: RunRecord) -> Curves:
    """Draw up the learning curves again from the published tables."""
    # The same class that wrote the curves in training, so that both round and order alike.
    curves = Curves()
    updates = run.updates
    episodes = {
        int(iteration): row for row, iteration in enumerate(run.episodes.column("iteration"))
    }
    for row, iteration in enumerate(updates.column("iteration").tolist()):
        best = updates.column("best_iteration")[row]
        # A row as training had it, but for the hash chain, of which no curve is drawn.
        update = UpdateRow(
            iteration=iteration,
            env_steps=int(updates.column("env_steps")[row]),
            metrics={
                name: float(updates.column(name)[row]) for name in OF_UPDATES if name in updates
            },
            validation_accuracy=float(updates.column("validation_accuracy")[row]),
            best_iteration=None if math.isnan(best) else int(best),
            state_chain="",
        )
        # Rows that are missing are found by the checks of the tables.
        if iteration in episodes:
            columns = {
                name: run.episodes.column(name)
                for name in OF_EPISODES.values()
                if name in run.episodes
            }
            curves.append(
                update, {name: column[episodes[iteration]] for name, column in columns.items()}
            )
    return curves


def apart(first: Any, second: Any, place: str = "") -> Iterator[str]:
    """Yield the paths at which two trees differ: ``standings.held_out.policies.learned.score.low``.

    Args:
        first: a tree of dicts, lists and values.
        second: that it is compared with; the order of the two does not matter.
        place: the path of both in the whole, joined by dots; empty at the root.
    """
    # A key that one of the two lacks counts as None: a part without values may be left out, any other may not.
    if isinstance(first, dict) and isinstance(second, dict):
        for name in sorted(first.keys() | second.keys()):
            yield from apart(first.get(name), second.get(name), f"{place}.{name}".lstrip("."))
    elif (
        isinstance(first, list | tuple)
        and isinstance(second, list | tuple)
        and len(first) == len(second)
    ):
        for number, pair in enumerate(zip(first, second, strict=True)):
            yield from apart(*pair, f"{place}.{number}")
    elif isinstance(first, float) and isinstance(second, float):
        # Only floats may be apart by rounding: counts, names and flags must be equal.
        if not math.isclose(first, second, rel_tol=ROUNDING, abs_tol=ROUNDING):
            yield place
    elif first != second:
        yield place
