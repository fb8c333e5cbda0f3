"""Write the study as a tidy table, and summarize it: training seeds are the units, over means of evaluation seeds."""

import csv
import io
import json
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from simic import durable
from simic.evaluation import statistics
from simic.evaluation.page import interval
from simic.study.plan import StudyPlan, in_words

TABLE = "table.csv"
MEASURED = (
    "score", "score_low", "score_high", "params", "training_flops", "controller_trainings", "cell_seconds", "cell"
)  # fmt: skip
Scores = Mapping[int, float]  # of a policy at a grid point, by training seed


def write(plan: StudyPlan) -> None:
    """Write table.csv in the study's folder: a row per finished cell and policy, in the order of the plan."""
    text, done = io.StringIO(), plan.done()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*plan.study.grid, "seed", "policy", *MEASURED])
    for cell in plan.cells:
        if (result := done.get(cell.fingerprint)) is None:
            continue
        for row in result.rows:
            if row.policy not in plan.study.policies:
                continue
            score = (round(value, 4) for value in (row.score.estimate, row.score.low, row.score.high))
            cost = (round(row.params, 1), round(row.training_flops), row.controller_trainings, round(result.seconds, 1))
            rows.writerow([*map(_plain, cell.point), cell.seed, row.policy, *score, *cost, cell.fingerprint])
    durable.replace_file(plan.folder / TABLE, text.getvalue().encode())


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def summary(plan: StudyPlan) -> Iterator[str]:
    """Yield per policy and grid point the mean score over training seeds with its 95 % t interval, and what it is above
    the first grid point on the seeds that both have.
    """
    done, tables = plan.done(), dict[str, dict[str, dict[int, float]]]()  # by point, policy, training seed
    for cell in plan.cells:
        scores = tables.setdefault(in_words(plan.study, cell.point), {})
        for row in done[cell.fingerprint].rows if cell.fingerprint in done else ():
            scores.setdefault(row.policy, {})[cell.seed] = row.score.estimate
    for policy in plan.study.policies:
        yield f"{policy}: mean score over training seeds [95 %], and over the first grid point"
        first = next(iter(tables.values())).get(policy, {})
        for number, (words, by_policy) in enumerate(tables.items()):
            own = by_policy.get(policy, {})
            over = f"   {_difference(plan, own, first)}" if number else ""
            yield f"  {words}   {_mean(own)}{over}"


def _mean(scores: Scores) -> str:
    if len(scores) < 2:
        return f"{next(iter(scores.values())):.1f} (1 seed)" if scores else "not measured"
    mean = statistics.mean_interval(list(scores.values()))
    return f"{mean.estimate:.1f} [{mean.low:.1f}, {mean.high:.1f}] ({len(scores)} seeds)"


def _difference(plan: StudyPlan, own: Scores, first: Scores) -> str:
    both = [seed for seed in plan.study.seeds if seed in own and seed in first]
    if not both:
        return "not measured"
    if len(both) < 2:
        return f"{own[both[0]] - first[both[0]]:+.1f} (1 seed)"
    values = {name: [scores[seed] for seed in both] for name, scores in (("own", own), ("first", first))}
    comparison = statistics.compare("own", "first", values, rng_seed=0)
    return f"{interval(comparison.difference)}, p = {comparison.p_value:.3f}"
