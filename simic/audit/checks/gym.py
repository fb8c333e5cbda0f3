"""A run on a Gymnasium environment: its record recomputed, its evaluation, and chance."""

from collections.abc import Iterator

import numpy as np

from simic.audit import recompute
from simic.audit.checks.base import Outcome, check, undecided
from simic.audit.checks.claims import EXACT, compared_pairs, interval_pairs
from simic.audit.checks.floors import judged_gain
from simic.audit.checks.recomputed import SUM, Pair, concluded, differing, recomputed, rollouts
from simic.audit.findings import Evidence, number, percent
from simic.audit.record import RunRecord
from simic.evaluation import statistics
from simic.evaluation.gym import RANDOM, GymEvaluation


@recomputed(
    id="Y1",
    subject="gym",
    title="Episodes are not what their steps add up to",
    question="Do numbers, returns and lengths of episodes follow from the steps, from the first iteration on?",
    needs=("checkpoints", "steps.reward", "steps.starts", "steps.terminated", "steps.truncated", "episodes.length"),
    threshold=f"a count that differs, or a return by more than {number(SUM)}; a start that does not follow an end",
)
def _episodes_add_up(run: RunRecord) -> Outcome:
    problems: list[Evidence] = []
    episodes = run.episodes
    rows = {int(iteration): row for row, iteration in enumerate(episodes.column("iteration"))}
    envs = episodes.column("return").shape[1]
    total, length, began = np.zeros(envs), np.zeros(envs), np.ones(envs, dtype=bool)
    for iteration, steps in rollouts(run):
        count, returns, lengths = np.zeros(envs), np.zeros(envs), np.zeros(envs)
        for reward, starts, *ends in zip(
            *(steps[n] for n in ("reward", "starts", "terminated", "truncated")), strict=True
        ):
            if (starts != began).any():
                problems.append({"what": "a start without an end before it", "iteration": iteration})
            began = ends[0] | ends[1]
            total, length = total + reward, length + 1
            count, returns, lengths = count + began, returns + began * total, lengths + began * length
            total, length = np.where(began, 0.0, total), np.where(began, 0, length)
        of = np.divide(1.0, count, out=np.full(envs, np.nan), where=count > 0)
        for name, expected in {"episodes": count, "return": returns * of, "length": lengths * of}.items():
            recorded = episodes.column(name)[rows[iteration]] if iteration in rows else np.full(envs, np.nan)
            if not np.allclose(recorded, expected, rtol=SUM, atol=SUM, equal_nan=True):
                problems.append({"what": name, "iteration": iteration})
    return concluded(problems, f"{int(np.nansum(episodes.column('episodes')))} episodes add up")


@recomputed(
    id="Y3",
    subject="gym",
    title="The evaluation does not follow from its episodes",
    question="Do means, intervals and differences follow from the returns, and are headroom and evaluation of one run?",
    needs=("checkpoints", "gym", "gym_headroom"),
    threshold=f"a number that differs by more than {number(EXACT)}; other data, or other returns than in headroom.json",
)
def _claims_follow(run: RunRecord) -> Outcome:
    evaluation, headroom = run.gym, run.gym_headroom
    assert evaluation is not None and headroom is not None  # stated in needs
    same = {"data": headroom.data_sha256 == evaluation.data_sha256, "peer": headroom.peer == evaluation.peer}
    same |= {name: evaluation.policies[name].per_seed == scores for name, scores in headroom.policies.items()}
    kept = (run.checkpoints or {}).get(evaluation.checkpoint)
    same["checkpoint"] = kept is None or kept.manifest.iteration == evaluation.checkpoint_iteration
    problems: list[Evidence] = [{"what": f"another {name}"} for name, equal in same.items() if not equal]
    pairs = list(_numbers(evaluation))
    return concluded(problems + differing(pairs), f"{len(pairs)} numbers")


def _numbers(evaluation: GymEvaluation) -> Iterator[Pair]:
    returns = {name: np.array(policy.per_seed.returns) for name, policy in evaluation.policies.items()}
    for name, policy in evaluation.policies.items():
        yield from interval_pairs(name, policy.mean_return, recompute.mean_interval(returns[name]))
        if policy.iqm_return is not None:
            yield Pair(f"{name}, IQM", policy.iqm_return.estimate, recompute.trimmed(returns[name]))
    yield from compared_pairs(evaluation.comparisons, returns)


@check(
    id="Y4",
    subject="gym",
    title="Not better than random actions",
    severity="critical",
    question="Is the return of the learned policy above that of random legal actions, in the same fresh episodes?",
    needs=("gym",),
    threshold=f"upper end of the paired {percent(statistics.CONFIDENCE)} interval over episodes <= 0; contains 0: low",
    source="Schulman, Nuts and Bolts (run baselines first)",
    fix="Train longer; check the symptoms of the updates.",
)
def _chance(run: RunRecord) -> Outcome:
    assert run.gym is not None  # stated in needs
    gain = next((each.difference for each in run.gym.comparisons if each.second == RANDOM), None)
    if gain is None:
        return undecided("the trained policy was not evaluated")
    return judged_gain(gain, f"{gain.estimate:+.4g} [{gain.low:+.4g}, {gain.high:+.4g}] over {RANDOM}")
