"""A run on a Gymnasium environment: its record recomputed, its evaluation, and chance."""

from collections.abc import Iterator

import numpy as np
import torch

from simic.audit import recompute
from simic.audit.checks.base import Outcome, check, failed, passed, undecided
from simic.audit.checks.claims import EXACT, interval_pairs
from simic.audit.checks.recomputed import SCALED, SUM, Pair, concluded, differing, moments_of, recomputed, rollouts
from simic.audit.findings import Evidence, number, percent
from simic.audit.record import RunRecord
from simic.certify import ppo as derived
from simic.certify.agent import Scale
from simic.evaluation import statistics
from simic.evaluation.gym import RANDOM, GymEvaluation
from simic.evaluation.result import LEARNED


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
    id="Y2",
    subject="gym",
    title="Advantages or returns are not what the rewards give",
    question="Do advantages, returns, the scale of rewards and explained variance follow from the recorded rewards?",
    needs=("checkpoints", "params", "steps.reward", "steps.starts", "steps.next_value", "updates.return_mean"),
    threshold=f"a moment that differs by more than {number(SCALED)} of the largest value",
)
def _advantages_follow(run: RunRecord) -> Outcome:
    ppo, problems, compared = run.params.train.ppo, list[Evidence](), 0
    nothing, running = torch.zeros(1, dtype=torch.float64), None
    scale = Scale(0.0, nothing, nothing) if ppo.normalize_rewards else None
    table = {int(iteration): row for row, iteration in enumerate(run.updates.column("iteration"))}
    for iteration, steps in rollouts(run):
        names = ("reward", "starts", "valid", "value", "next_value", "terminated", "truncated")
        columns = [torch.from_numpy(steps[name].copy()) for name in names]
        paid, starts, valid, value, following, terminated, truncated = columns
        paid = paid.float().double()
        scale, scaled, running = derived.scaled(paid, valid, scale, ppo.gamma, True, starts, running)
        if iteration not in table:
            problems.append({"what": "no update", "iteration": iteration})
            continue
        values = value.double()
        gained, returns = derived.advantages(
            scaled, values, following.double(), terminated, truncated, valid, ppo.gamma, ppo.gae_lambda
        )
        pairs = moments_of(run, table[iteration], gained[valid], returns[valid], values[valid])
        compared += len(pairs)
        problems += differing(pairs, iteration=iteration)
    return concluded(problems, f"{compared} moments")


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
    for each in evaluation.comparisons:
        difference = returns[LEARNED] - returns[each.second]
        yield from interval_pairs(f"over {each.second}", each.difference, recompute.mean_interval(difference))
        p, spread = recompute.sign_flip(difference)
        yield Pair(f"over {each.second}: p", each.p_value, p, spread)


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
    said = f"{gain.estimate:+.4g} [{gain.low:+.4g}, {gain.high:+.4g}] over {RANDOM}"
    if gain.low > 0:
        return passed(said)
    evidence = [{"versus": RANDOM, "difference": gain.estimate, "low": gain.low, "high": gain.high}]
    return failed(said, None if gain.high <= 0 else "low", evidence)
