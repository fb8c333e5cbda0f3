"""Rewards: shaping that telescopes, components that add up, no hacking."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from simic.audit import limits
from simic.audit.checks.base import (
    MOST_EVIDENCE,
    OURS,
    Check,
    Outcome,
    Reading,
    Values,
    check,
    episodes,
    judged,
    length_of,
    undecided,
    weighed,
    where_steps,
)
from simic.audit.findings import Evidence, number, percent
from simic.audit.record import RunRecord
from simic.growth.life.vocabulary import Op

TOLERANCE = 1e-6  # of sums of recorded rewards; ours
TREND = 20  # iterations by which a trend is judged


@check
class Telescoping(Check):
    """Check P1: potential-based shaping sums to 0 from an empty host to a true terminal."""

    id = "P1"
    title = "Shaping does not telescope"
    severity = "critical"
    layer = "recompute"
    question = "Is the discounted sum of the shaping term 0 in every finished episode, with the agent's own gamma?"
    needs = ("params", "steps.components.shaping", "steps.valid", "steps.panicked")
    counted = "finished episode of a host"
    threshold = f"|sum over t of gamma^t F_t| >= {number(TOLERANCE)} for any host and episode, gamma = ppo.gamma"
    source = "Ng, Harada and Russell 1999; recomputed here from the recorded steps"
    fix = "Pay F = w(gamma Phi(s') - Phi(s)) on true successive states over all slots, with Phi = 0 at true terminals."
    passes_when = f"every finished episode's residual is below {number(TOLERANCE)}"

    def examine(self, run: RunRecord) -> Outcome:
        train = run.params.train
        gamma = train.ppo.gamma
        shaping, valid = run.steps.column("components.shaping"), run.steps.column("valid")
        panicked = run.steps.column("panicked")
        worst, evidence, finished = 0.0, [], 0
        for rows in episodes(run):
            discounts = gamma ** np.arange(len(rows))
            residual = np.abs((discounts[:, None] * np.where(valid[rows], shaping[rows], 0.0)).sum(axis=0))
            iteration = int(run.steps.column("iteration")[rows[0]])
            complete = len(rows) == length_of(run, iteration) and train.episode_end == "terminate"
            terminal = complete | panicked[rows].any(axis=0)  # a rollback is a terminal too
            finished += int(terminal.sum())
            residual = np.where(terminal, residual, 0.0)
            worst = max(worst, float(residual.max()))
            bad = np.flatnonzero(~(residual < TOLERANCE))
            evidence += [{"iteration": iteration, "env": int(e), "residual": float(residual[e])} for e in bad]
        if not finished:
            return undecided("no episode reached a true terminal")
        measured = f"largest residual {worst:.2g} in {finished} episodes"
        return judged(bool(evidence), measured, tuple(evidence[:MOST_EVIDENCE])).of(finished)


@check
class ComponentSum(Check):
    """Check P5: the reward is the sum of its recorded components."""

    id = "P5"
    title = "Reward components do not add up to the reward"
    severity = "critical"
    layer = "recompute"
    question = "Is the reward of every step the sum of its components?"
    needs = ("steps.reward", "steps.valid")
    threshold = f"|reward - sum| > {number(TOLERANCE)} at any valid step"
    source = "definition of the reward; tolerance " + OURS
    fix = "Pay nothing outside the registered reward terms."
    passes_when = f"the difference stays within {number(TOLERANCE)}"

    def examine(self, run: RunRecord) -> Outcome:
        parts = run.steps.below("components")
        if not parts:
            return undecided("no reward components are recorded")
        difference = np.abs(run.steps.column("reward") - np.sum(list(parts.values()), axis=0))
        difference = np.where(run.steps.column("valid"), difference, 0.0)
        measured = f"largest difference {np.max(difference):.2g} over {len(parts)} components"
        bad = ~(difference <= TOLERANCE)
        return judged(bad, measured, where_steps(run, bad, "difference", difference))


@check
class Divergent(Check):
    """Check P3: returns do not rise while committed accuracy falls (reward hacking)."""

    id = "P3"
    title = "Return rises while the true objective does not"
    severity = "high"
    question = "Do returns and committed accuracy rise together?"
    needs = ("episodes.return", "episodes.committed_accuracy")
    minimum = TREND
    RISING, P_VALUE = limits.RETURN_AGAINST_OBJECTIVE, 0.05
    counted = "iteration of PPO"
    threshold = (
        f"over the last {TREND} iterations of PPO: Spearman(return, time) > {RISING:g} (p < {P_VALUE:g}) and "
        "Spearman(return, accuracy) < 0"
    )
    source = "Sample Factory true_objective; Irpan 2018; rule " + OURS
    fix = "Find the component that rose (reward figure); lower its weight."
    passes_when = "returns do not rise at the expense of committed accuracy"

    def examine(self, run: RunRecord) -> Outcome:
        returns = run.episodes.column("return").mean(axis=1)[-TREND:]
        accuracy = np.nanmean(run.episodes.column("committed_accuracy"), axis=1)[-TREND:]
        rising, p_value = spearman(returns, np.arange(float(len(returns))))
        together, _ = spearman(returns, accuracy)
        against = p_value < self.P_VALUE and together < 0
        return weighed([Reading(self.RISING, rising if against else 0.0)]).of(len(returns))


KEEPING = ("steps.effective_op", "steps.live_accuracy", "steps.contribution", "steps.contribution_se", "steps.valid")


@dataclass(frozen=True)
class _Kept:
    """Hold a seed at its fossilization and its host's gain since germination, in points."""

    iteration: int
    step: int
    env: int
    progress: float
    contribution: float
    error: float  # standard, of the contribution

    @property
    def evidence(self) -> Evidence:
        return {
            "iteration": self.iteration,
            "step": self.step,
            "env": self.env,
            "progress_pct": self.progress,
            "contribution_pct": self.contribution,
        }


def _kept(run: RunRecord) -> list[_Kept]:
    """Return all fossilized seeds except those germinated in the first step, before which nothing was measured."""
    names = ("effective_op", "slot", "valid", "live_accuracy", "contribution", "contribution_se", "iteration")
    kept = []
    for rows in episodes(run):
        op, slot, valid, accuracy, contribution, errors, iteration = (run.steps.column(name)[rows] for name in names)
        for t, env in zip(*np.nonzero((op == Op.FOSSILIZE) & valid), strict=True):
            target = slot[t, env]
            planted = np.flatnonzero((op[:t, env] == Op.GERMINATE) & (slot[:t, env] == target))
            if t == 0 or planted.size == 0 or planted[-1] == 0:
                continue
            kept.append(
                _Kept(
                    iteration=int(iteration[0]),
                    step=int(t) + 1,
                    env=int(env),
                    progress=float(accuracy[t - 1, env] - accuracy[planted[-1] - 1, env]),  # measured before the op
                    contribution=float(contribution[t - 1, env, target]),
                    error=float(np.nan_to_num(errors[t - 1, env, target])),
                )
            )
    return kept


@check
class HarmfulSeedKept(Check):
    """Check P6: no seed is fossilized that the host depends on though it got worse."""

    id = "P6"
    title = "Seeds that harmed their host were fossilized"
    severity = "high"
    question = "Was every host as good when its seed was fossilized as when it was germinated?"
    needs = KEEPING
    post_hoc = True
    counted = "fossilization"
    HELPED_PCT, LOST_PCT, ERRORS = 0.1, 0.2, 4.0
    MANY, SOME = limits.HARMFUL_SEEDS, limits.SOME_HARMFUL_SEEDS
    threshold = (
        f"> {percent(SOME)} of fossilizations with a contribution > {HELPED_PCT:g} points, but accuracy lost > "
        f"{LOST_PCT:g} points since germination, both also > {ERRORS:g} standard errors of the contribution: medium; > "
        f"{percent(MANY)}: high"
    )
    source = OURS
    fix = "Make the fossilize bonus conditional on progress since germination."
    passes_when = "hardly a seed was fossilized on a host that had lost accuracy since its germination"

    def examine(self, run: RunRecord) -> Outcome:
        kept = _kept(run)
        if not kept:
            return undecided("nothing was fossilized").of(0)
        harmful = [
            each.evidence
            for each in kept
            if each.contribution > max(self.HELPED_PCT, self.ERRORS * each.error)
            and -each.progress > max(self.LOST_PCT, self.ERRORS * each.error)
        ]
        evidence = tuple(harmful[:MOST_EVIDENCE])
        share = len(harmful) / len(kept)
        readings = [Reading(self.MANY, share, "high", evidence), Reading(self.SOME, share, "medium", evidence)]
        return weighed(readings).of(len(kept))


def spearman(x: Values, y: Values) -> tuple[float, float]:
    """Return rank correlation and its two-sided p; 0 and 1 where one of the two is constant."""
    if np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return 0.0, 1.0
    statistic, p_value = np.asarray(stats.spearmanr(x, y))
    return float(statistic), float(p_value)
