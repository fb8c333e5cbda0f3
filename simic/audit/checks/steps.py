"""Recorded steps: legality of actions, validity of rows, and rewards that telescope, add up and are not hacked."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from simic.audit import limits
from simic.audit.checks.base import (
    OURS,
    Outcome,
    Reading,
    Values,
    episodes,
    judged,
    of_growth,
    undecided,
    weighed,
    where_steps,
)
from simic.audit.findings import Evidence, number, percent
from simic.audit.record import RunRecord
from simic.growth.life.vocabulary import Op
from simic.telemetry.columns import Array

TOLERANCE = 1e-6  # of sums of recorded rewards; ours


def _ops(run: RunRecord, bad: NDArray[np.bool_]) -> list[Evidence]:
    names = np.array([op.name for op in Op])
    return where_steps(run, bad, "op", names[run.steps.column("op")])


# Masks make every sampled action legal, so only a gate may keep an op from taking effect.
@of_growth(
    id="M1",
    title="An illegal action was sampled or executed",
    severity="critical",
    layer="recompute",
    question="Did every sampled op take effect unless a gate refused it?",
    needs=("steps.op", "steps.effective_op", "steps.gate", "steps.gate_passed", "steps.valid"),
    threshold="a valid step whose effective op is not the sampled one (WAIT where a gate refused)",
    source="Huang and Ontanon 2020 (invalid action masking); sb3-contrib tests",
    fix="Build masks from the lifecycle's own table, and replay with exactly the masks used when acting.",
)
def _legality(run: RunRecord) -> Outcome:
    op, effective, gate, passed_gate, valid = (
        run.steps.column(name) for name in ("op", "effective_op", "gate", "gate_passed", "valid")
    )
    refused = (gate >= 0) & ~passed_gate
    bad = valid & (np.where(refused, int(Op.WAIT), op) != effective)
    return judged(_ops(run, bad), f"{int(bad.sum())} of {int(valid.sum())} decisions")


@of_growth(
    id="M2",
    title="Validity of rows does not follow the rollbacks",
    severity="high",
    question="Is every row valid up to a rollback and none after it?",
    needs=("steps.valid", "steps.panicked", "steps.step"),
    threshold="a valid row after its host's rollback, or an invalid row without one before it",
    source="cleanrl#198, skrl#224 (rows of ended episodes leak into advantages)",
    fix="Mask the rows after a rollback, and only those, out of the rollout.",
)
def _episode_ends(run: RunRecord) -> Outcome:
    valid, panicked = run.steps.column("valid"), run.steps.column("panicked")
    expected = np.ones_like(valid)
    for rows in episodes(run):
        expected[rows[1:]] = ~np.logical_or.accumulate(panicked[rows[:-1]])
    bad = valid != expected
    return weighed([Reading(limits.WRONG_ROWS, bad.sum(), None, _ops(run, bad))])


@of_growth(
    id="P5",
    title="Reward components do not add up to the reward",
    severity="critical",
    layer="recompute",
    question="Is the reward of every step the sum of its components?",
    needs=("steps.reward", "steps.valid"),
    threshold=f"|reward - sum| > {number(TOLERANCE)} at any valid step",
    source="definition of the reward; tolerance " + OURS,
    fix="Pay nothing outside the registered reward terms.",
)
def _component_sum(run: RunRecord) -> Outcome:
    parts = run.steps.below("components")
    if not parts:
        return undecided("no reward components are recorded")
    difference = np.abs(run.steps.column("reward") - np.sum(list(parts.values()), axis=0))
    difference = np.where(run.steps.column("valid"), difference, 0.0)
    evidence = where_steps(run, ~(difference <= TOLERANCE), "difference", difference)
    return judged(evidence, f"largest difference {np.max(difference):.2g} over {len(parts)} components")


TREND = 20  # iterations by which a trend is judged
P_VALUE = 0.05


@of_growth(
    id="P3",
    title="Return rises while the true objective does not",
    severity="high",
    question="Do returns and committed accuracy rise together?",
    needs=("episodes.return", "episodes.committed_accuracy"),
    minimum=TREND,
    threshold=(
        f"over the last {TREND} iterations of PPO: Spearman(return, time) > {limits.RETURN_AGAINST_OBJECTIVE:g} "
        f"(p < {P_VALUE:g}) and Spearman(return, accuracy) < 0"
    ),
    source="Sample Factory true_objective; Irpan 2018; rule " + OURS,
    fix="Find the component that rose (reward figure); lower its weight.",
)
def _reward_hacking(run: RunRecord) -> Outcome:
    returns = run.episodes.column("return").mean(axis=1)[-TREND:]
    accuracy = np.nanmean(run.episodes.column("committed_accuracy"), axis=1)[-TREND:]
    rising, p_value = _spearman(returns, np.arange(float(len(returns))))
    together, _ = _spearman(returns, accuracy)
    against = p_value < P_VALUE and together < 0
    return weighed([Reading(limits.RETURN_AGAINST_OBJECTIVE, rising if against else 0.0)])


def _spearman(x: Values, y: Values) -> tuple[float, float]:
    """Return rank correlation and its two-sided p; 0 and 1 where one of the two is constant."""
    if np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return 0.0, 1.0
    statistic, p_value = np.asarray(stats.spearmanr(x, y))
    return float(statistic), float(p_value)


HELPED_PCT, LOST_PCT, ERRORS = 0.1, 0.2, 4.0


@of_growth(
    id="P6",
    title="Seeds that harmed their host were fossilized",
    severity="high",
    question="Was every host as good when its seed was fossilized as when it was germinated?",
    needs=(
        "steps.effective_op",
        "steps.live_accuracy",
        "steps.contribution",
        "steps.contribution_se",
        "steps.valid",
    ),
    post_hoc=True,
    threshold=(
        f"> {percent(limits.SOME_HARMFUL_SEEDS)} of fossilizations with a contribution > {HELPED_PCT:g} points, but "
        f"accuracy lost > {LOST_PCT:g} points since germination, both also > {ERRORS:g} standard errors of the "
        f"contribution: medium; > {percent(limits.HARMFUL_SEEDS)}: high"
    ),
    source=OURS,
    fix="Make the fossilize bonus conditional on progress since germination.",
)
def _harmful_seeds_kept(run: RunRecord) -> Outcome:
    kept = _kept(run)
    gained, contributed, noise = (kept[name] for name in ("progress_pct", "contribution_pct", "error_pct"))
    if not len(gained):
        return undecided("nothing was fossilized")
    harmful = (contributed > np.maximum(HELPED_PCT, ERRORS * noise)) & (-gained > np.maximum(LOST_PCT, ERRORS * noise))
    share = float(harmful.mean())
    rows = zip(*(values[harmful].tolist() for values in kept.values()), strict=True)
    evidence = [dict(zip(kept, row, strict=True)) for row in rows]
    high = Reading(limits.HARMFUL_SEEDS, share, "high", evidence)
    return weighed([high, Reading(limits.SOME_HARMFUL_SEEDS, share, "medium", evidence)])


def _kept(run: RunRecord) -> dict[str, Array]:
    """Return the fossilized seeds, but those germinated in the first step, before which nothing was measured: of each
    its host's gain since germination, its contribution and the standard error of that, in points, all before the op.
    """
    names = ("effective_op", "slot", "valid", "live_accuracy", "contribution", "contribution_se", "iteration")
    parts = []
    for rows in episodes(run):
        op, slot, valid, accuracy, contribution, errors, iteration = (run.steps.column(name)[rows] for name in names)
        t, env = np.nonzero((op == Op.FOSSILIZE) & valid)
        target, time = slot[t, env], np.arange(len(op))[:, None]
        planted = (op[:, env] == Op.GERMINATE) & (slot[:, env] == target) & (time < t)
        begun = len(op) - 1 - planted[::-1].argmax(axis=0)
        known = planted.any(axis=0) & (begun > 0)
        t, env, target, begun = t[known], env[known], target[known], begun[known]
        part = {
            "iteration": np.full(len(t), iteration[0]),
            "step": t + 1,
            "env": env,
            "progress_pct": accuracy[t - 1, env] - accuracy[begun - 1, env],
            "contribution_pct": contribution[t - 1, env, target],
            "error_pct": np.nan_to_num(errors[t - 1, env, target]),
        }
        parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
