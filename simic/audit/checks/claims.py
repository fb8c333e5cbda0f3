"""Recomputation of the evaluation's statistics from values per host, by formulas of the audit's own."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from simic.audit import recompute
from simic.audit.checks.base import Outcome, undecided
from simic.audit.checks.recomputed import Pair, concluded, differing, recomputed
from simic.audit.findings import Evidence, number
from simic.audit.record import RunRecord
from simic.evaluation.endpoints import COMMON, ORACLE_TASK
from simic.evaluation.result import Evaluation, Fixed, HeadroomReport, PerSeed, Standings
from simic.evaluation.statistics import Interval, PairedComparison
from simic.telemetry.columns import Array

EXACT = 1e-6  # of means and formulas
SEARCHED = 1e-4  # of ends that evaluation finds by a search
ROUNDED = 1e-3  # of what is stored with four decimals


@recomputed(
    subject="growth",
    id="C9",
    title="The evaluation's statistics are not those of its scores",
    question="Do means, intervals, p-values, gap and shares follow from the values per host?",
    needs=("checkpoints", "evaluation", "headroom"),
    threshold=f"a number that differs by more than {number(EXACT)} (ends found by a search: {number(SEARCHED)})",
)
def _claims_follow(run: RunRecord) -> Outcome:
    evaluation, headroom = run.evaluation, run.headroom
    assert evaluation is not None and headroom is not None  # stated in needs
    played = {name: policy.per_seed for name, policy in evaluation.policies.items()}
    accuracies = {name: np.array(seeds.test_accuracy_pct) for name, seeds in played.items()}
    pairs = [*_policies(evaluation), *compared_pairs(evaluation.comparisons, accuracies)]
    pairs += _standings("", evaluation.standings, played, headroom)
    for name, other in evaluation.others.items():  # other lengths of episodes, and tasks from outside the suite
        measured = headroom.others[name]
        pairs += _standings(f"{name}, ", other.standings, {**measured.policies, **other.per_seed}, measured)
    return concluded(differing(pairs), f"{len(pairs)} numbers")


def interval_pairs(
    name: str, claimed: Interval, computed: tuple[float, float, float], tolerance: float = EXACT
) -> Iterator[Pair]:
    """Yield the estimate and the ends of an interval beside those computed."""
    for part, value in zip(("estimate", "low", "high"), computed, strict=True):
        yield Pair(f"{name}: {part}", getattr(claimed, part), value, tolerance)


def _policies(evaluation: Evaluation) -> Iterator[Pair]:
    for name, policy in evaluation.policies.items():
        test = np.array(policy.per_seed.test_accuracy_pct)
        yield from interval_pairs(f"{name}, accuracy", policy.test_accuracy_pct, recompute.mean_interval(test))
        if policy.test_accuracy_iqm_pct is not None:
            yield Pair(f"{name}, IQM", policy.test_accuracy_iqm_pct.estimate, recompute.trimmed(test))
        for what in ("params", "flops_per_sample", "germinated", "fossilized", "pruned", "rollbacks"):
            yield Pair(f"{name}, {what}", getattr(policy, what), float(np.mean(getattr(policy.per_seed, what))))
        yield Pair(f"{name}, validation", policy.val_accuracy_pct, float(np.mean(policy.per_seed.val_accuracy_pct)))
        growth = float(np.mean(policy.per_seed.params)) / evaluation.host.params
        yield Pair(f"{name}, growth", policy.growth_ratio, growth)


def compared_pairs(comparisons: Iterable[PairedComparison], values: Mapping[str, Array]) -> Iterator[Pair]:
    """Yield what is said of differences between two policies, whose ``values`` are given per seed."""
    for each in comparisons:
        difference, name = values[each.first] - values[each.second], f"{each.first} - {each.second}"
        yield from interval_pairs(name, each.difference, recompute.mean_interval(difference))
        p, spread = recompute.sign_flip(difference)
        yield Pair(f"{name}: p", each.p_value, p, spread)
        yield Pair(f"{name}: improves", each.probability_of_improvement, recompute.improves(difference))


def _scores(accuracy: Array, params: Array, headroom: HeadroomReport) -> Array:
    """Return scores of hosts ``[R]``, or of schedules on them ``[R, S]``; bare hosts may differ in size by row."""
    bare = np.array(headroom.bare or [headroom.host.params] * len(headroom.rows), dtype=float)
    return accuracy - headroom.price * (params.T / bare - 1.0).T


def _standings(
    where: str, by_group: Mapping[str, Standings], played: Mapping[str, PerSeed], headroom: HeadroomReport
) -> Iterator[Pair]:
    sizes = np.array(headroom.params, dtype=float)
    choosing, val, test = (
        _scores(np.array(table), sizes, headroom)
        for table in (headroom.choosing_val_pct, headroom.val_pct, headroom.test_pct)
    )
    best = recompute.best_of(val, test)
    reached = np.mean(headroom.search_scores, axis=0)
    yield Pair(f"{where}common schedule", float(headroom.common), float(reached.argmax()), 0.0)
    for name_of_group, standings in by_group.items():
        tasks = [place for place, task in enumerate(headroom.tasks) if task.group == name_of_group]
        group = f"{where}{name_of_group}"

        def mean(values: Array, tasks: list[int] = tasks) -> Array:
            return recompute.by_task(values, headroom.rows, tasks)

        common = mean(test)[:, headroom.common]
        oracle = recompute.of_best(mean(choosing), mean(test))
        yield from interval_pairs(f"{group}, gap", standings.gap, recompute.mean_interval(oracle - common))
        searched = [float(mean(scores).mean()) for scores in best]
        for k, (claimed, computed) in enumerate(zip(standings.random_search, searched, strict=True), start=1):
            yield Pair(f"{group}, search of {k}", claimed, computed, ROUNDED)
        reached = {COMMON: common, ORACLE_TASK: oracle}
        for name, hosts in played.items():
            scores = _scores(np.array(hosts.test_accuracy_pct), np.array(hosts.params, dtype=float), headroom)
            reached[name] = mean(scores)
        for name, scores in reached.items():
            standing, said = standings.policies[name], f"{group}, {name}"
            yield from interval_pairs(f"{said}, score", standing.score, recompute.mean_interval(scores))
            yield from interval_pairs(f"{said}, gain", standing.over_common, recompute.mean_interval(scores - common))
            if standing.over_rule is not None and standings.rule is not None:
                won = scores - reached[standings.rule]
                yield from interval_pairs(f"{said}, over the rule", standing.over_rule, recompute.mean_interval(won))
            worth = recompute.worth(float(scores.mean()), searched)
            yield Pair(f"{said}, worth of search", standing.search_worth.estimate.count, worth, ROUNDED)
            part = recompute.share(scores - common, oracle - common)
            if standing.share is not None and part is not None:
                yield from interval_pairs(f"{said}, share", standing.share, part, SEARCHED)
            yield Pair(f"{said}, has a share", float(standing.share is not None), float(part is not None), 0.0)


@recomputed(
    subject="growth",
    id="C12",
    title="Networks trained from the start are not comparable with the policy's",
    question="Are the grown networks that were trained from the start those of the policy, at equal epochs and FLOPs?",
    needs=("checkpoints", "evaluation", "params"),
    threshold="any difference of sizes, epochs or FLOPs",
)
def _trained_from_the_start(run: RunRecord) -> Outcome:
    evaluation = run.evaluation
    assert evaluation is not None  # stated in needs
    if not evaluation.static_final:
        return undecided("evaluate.static_final is off")
    grown = evaluation.policies[run.params.evaluate.policies[0]].per_seed
    problems: list[Evidence] = [
        {"what": what, "network": name}
        for name, fixed in evaluation.static_final.items()
        for what in _unlike(fixed, grown, evaluation.episode_steps, "FLOPs" in name)
    ]
    networks = len(evaluation.static_final) * evaluation.eval_seeds
    return concluded(problems, f"{networks} networks")


def _unlike(fixed: Fixed, grown: PerSeed, steps: int, by_flops: bool) -> Iterator[str]:
    if (fixed.params, fixed.flops_per_sample) != (grown.params, grown.flops_per_sample):
        yield "another network"
    epochs, flops = np.array(fixed.epochs), np.array(fixed.flops_per_sample)
    each, spent = np.array(fixed.training_flops) // epochs, np.array(grown.training_flops)
    if (each * epochs != fixed.training_flops).any() or len(set((each / flops).tolist())) > 1:
        yield "FLOPs that are not those of its epochs"
    if (epochs != (np.maximum(spent // each, 1) if by_flops else steps)).any():
        yield "epochs"
