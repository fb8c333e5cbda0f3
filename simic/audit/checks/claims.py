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
ROUNDING_PCT = 2.0  # points of test accuracy by which hosts of equal ops may differ, in different company
WIDEST_PCT = 50.0  # standard deviation of whether an answer is right, at most
ROUNDED = 1e-3  # of what is stored with four decimals


@recomputed(
    subject="growth",
    id="C9",
    title="The evaluation's statistics are not those of its scores",
    question="Do means, intervals, p-values and gap follow from the values per host?",
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


GAP_ERRORS, LEAST_PCT = 6.0, 5.0
NO_CHANCE = 4  # hosts: the accuracies of two may be equal on test and validation by chance


@recomputed(
    subject="growth",
    id="C10",
    title="Evaluated networks cannot be what is said of them",
    question="Are sizes and counts of seeds possible, and are test scores not those of validation?",
    needs=("checkpoints", "evaluation", "params"),
    threshold=(
        "a network with seeds kept and no parameters, or the reverse; static hosts that grew; on "
        f"{NO_CHANCE} hosts or more, test accuracies equal to validation's; or apart from them by more than "
        f"{GAP_ERRORS:g} standard errors (of hosts, and of samples) and {LEAST_PCT:g} points; hosts that never grew "
        f"and score otherwise than static ones, by more than {ROUNDING_PCT:g} points; an iteration that is not the "
        "checkpoint's"
    ),
)
def _hosts_possible(run: RunRecord) -> Outcome:
    evaluation, checkpoints = run.evaluation, run.checkpoints
    assert evaluation is not None and checkpoints is not None  # stated in needs
    problems: list[Evidence] = []
    static, of_samples = evaluation.policies.get("static"), _error_of_samples(run)
    for name, policy in evaluation.policies.items():
        problems += [{"what": what, "policy": name} for what in _impossible(policy.per_seed, evaluation)]
        test, val = (np.array(getattr(policy.per_seed, f"{split}_accuracy_pct")) for split in ("test", "val"))
        if len(test) >= NO_CHANCE and np.array_equal(test, val) and np.ptp(test) > 0:
            problems.append({"what": "test accuracies are validation's", "policy": name})
        apart = abs(float((test - val).mean()))
        error = max(float((test - val).std(ddof=1)) / np.sqrt(len(test)), of_samples)
        if apart > max(GAP_ERRORS * error, LEAST_PCT):
            problems.append({"what": "test and validation disagree", "policy": name, "points": apart})
        if static is not None and _unpaired(policy.per_seed, static.per_seed):
            problems.append({"what": "hosts that did not grow differ from static ones", "policy": name})
    if static is not None and any(static.per_seed.germinated):
        problems.append({"what": "static hosts grew"})
    kept = checkpoints.get(evaluation.checkpoint or "")
    if kept is not None and kept.manifest.iteration != evaluation.checkpoint_iteration:
        problems.append({"what": "checkpoint_iteration"})
    limit = run.params.train.lifecycle.max_seeds
    if limit is not None and any(max(p.per_seed.fossilized) > limit for p in evaluation.policies.values()):
        problems.append({"what": "more seeds than max_seeds"})
    return concluded(problems, f"{len(evaluation.policies)} policies on {evaluation.eval_seeds} hosts")


def _error_of_samples(run: RunRecord) -> float:
    """Return the largest standard error, in points, of test minus validation accuracy by their samples alone: hosts
    share the samples of their task.
    """
    if run.meta is None or run.evaluation is None:
        return 0.0
    tasks = len(set(run.evaluation.rows))
    return WIDEST_PCT * float(np.sqrt((1 / run.meta.samples["test"] + 1 / run.meta.samples["val"]) / tasks))


def _unpaired(hosts: PerSeed, static: PerSeed) -> bool:
    """Tell whether a host that never had a seed scores otherwise than the same host under ``static``, beyond samples
    that rounding may answer the other way.
    """
    bare = (np.array(hosts.germinated) == 0) & (np.array(hosts.rollbacks) == 0)
    apart = np.abs(np.array(hosts.test_accuracy_pct) - np.array(static.test_accuracy_pct))
    return bool((apart[bare] > ROUNDING_PCT).any())


def _impossible(hosts: PerSeed, evaluation: Evaluation) -> Iterator[str]:
    params, kept = np.array(hosts.params), np.array(hosts.fossilized)
    if ((params > evaluation.host.params) != (kept > 0)).any() or (params < evaluation.host.params).any():
        yield "parameters that do not go with the seeds kept"
    if (np.array(hosts.germinated) < kept).any():
        yield "more seeds kept than germinated"
    lost = np.array(hosts.germinated) - np.array(hosts.pruned) - kept
    if ((lost < 0) & (np.array(hosts.rollbacks) == 0)).any():
        yield "more seeds ended than germinated"
    flops = np.array(hosts.flops_per_sample)
    if ((flops > evaluation.host.flops_per_sample) & (kept == 0) | (flops < evaluation.host.flops_per_sample)).any():
        yield "FLOPs that do not go with the seeds kept"


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
