"""Whether the reward says what was meant: shaping that telescopes, components that add up, no hacking."""

import numpy as np

from simic.agent.normalization import REWARD_CLIP, REWARD_SIGMA_FLOOR
from simic.audit.checks.base import OURS, Check, Outcome, Values, check, found, longest_run, passed, spearman, undecided
from simic.audit.findings import Evidence
from simic.audit.record import RunRecord
from simic.envs.rewards import OBJECTIVES
from simic.growth.life.vocabulary import Op

TOLERANCE = 1e-6
LONG = 20


def _episodes(run: RunRecord) -> list[np.ndarray]:
    """Row indices of each iteration's steps, in order."""
    iterations = run.steps.column("iteration")
    order = np.lexsort((run.steps.column("step"), iterations))
    return np.split(order, np.flatnonzero(np.diff(iterations[order])) + 1)


@check
class Telescoping(Check):
    """P1: potential-based shaping sums to 0 from an empty host to a true terminal, or it changes the task."""

    id = "P1"
    title = "Shaping does not telescope"
    severity = "critical"
    question = "Is the discounted sum of the shaping term 0 in every finished episode, with the agent's own gamma?"
    needs = ("params", "steps.components.shaping", "steps.valid", "steps.panicked")
    threshold = "|sum over t of gamma^t F_t| < 1e-6 per host and episode"
    source = "Ng, Harada and Russell 1999; recomputed here from the recorded steps"
    fix = "Pay F = w(gamma Phi(s') - Phi(s)) on true successive states over all slots, with Phi = 0 at true terminals."
    passes_when = "every finished episode's residual is below 1e-6"

    def examine(self, run: RunRecord) -> Outcome:
        train = run.params.train
        gamma = train.ppo.gamma
        shaping, valid = run.steps.column("components.shaping"), run.steps.column("valid")
        panicked = run.steps.column("panicked")
        worst, evidence, finished = 0.0, [], 0
        for rows in _episodes(run):
            discounts = gamma ** np.arange(len(rows))
            residual = np.abs((discounts[:, None] * np.where(valid[rows], shaping[rows], 0.0)).sum(axis=0))
            complete = len(rows) == train.episode_steps and train.episode_end == "terminate"
            terminal = complete | panicked[rows].any(axis=0)  # a rollback is a terminal too
            finished += int(terminal.sum())
            residual = np.where(terminal, residual, 0.0)
            worst = max(worst, float(residual.max()))
            evidence += [
                {
                    "iteration": int(run.steps.column("iteration")[rows[0]]),
                    "env": int(env),
                    "residual": float(residual[env]),
                }
                for env in np.flatnonzero(~(residual < TOLERANCE))
            ]
        if not finished:
            return undecided("no episode reached a true terminal")
        measured = f"largest residual {worst:.2g} in {finished} episodes"
        return found(measured, None, tuple(evidence[:5])) if evidence else passed(measured)


@check
class ComponentSum(Check):
    """P5: the reward paid must be the sum of its recorded components."""

    id = "P5"
    title = "Reward components do not add up to the reward"
    severity = "critical"
    question = "Is the reward of every step the sum of its components?"
    needs = ("steps.reward", "steps.valid")
    threshold = "|reward - sum| <= 1e-6 at every valid step"
    source = "earlier system's audit (totals excluded components); tolerance of the design"
    fix = "Pay nothing outside the registered reward terms."
    passes_when = "the difference stays below 1e-6"

    def examine(self, run: RunRecord) -> Outcome:
        parts = run.steps.below("components")
        if not parts:
            return undecided("no reward components are recorded")
        difference = np.abs(run.steps.column("reward") - np.sum(list(parts.values()), axis=0))
        difference = np.where(run.steps.column("valid"), difference, 0.0)
        measured = f"largest difference {np.max(difference):.2g} over {len(parts)} components"
        bad = ~(difference <= TOLERANCE)
        return found(measured, None, _where_steps(run, bad, difference)) if bad.any() else passed(measured)


def _where_steps(run: RunRecord, bad: np.ndarray, values: Values, most: int = 5) -> tuple[Evidence, ...]:
    rows, envs = np.nonzero(bad)
    column = run.steps.column
    return tuple(
        {
            "iteration": int(column("iteration")[r]),
            "step": int(column("step")[r]),
            "env": int(e),
            "value": str(values[r, e]),
        }
        for r, e in list(zip(rows, envs, strict=True))[:most]
    )


@check
class Outlier(Check):
    """N4: potential-based rewards are not clipped (that would break their sum), so a huge one must be seen instead."""

    id = "N4"
    title = "Rewards far out of scale"
    severity = "medium"
    question = "Is every reward within 10 standard deviations of the discounted return so far?"
    needs = ("params", "steps.reward", "steps.valid")
    threshold = "|r| <= 10 sigma, sigma of the running discounted return of all iterations before"
    source = "Schulman, Nuts and Bolts (clip((x - mu) / sigma, -10, 10)), as a limit instead of a clip"
    fix = "Look which component it was; lower its weight, or death_penalty."
    passes_when = "no reward is beyond 10 sigma"

    def examine(self, run: RunRecord) -> Outcome:
        gamma, valid = run.params.train.ppo.gamma, run.steps.column("valid")
        reward = np.where(valid, run.steps.column("reward"), 0.0)
        sigmas, returns = np.zeros_like(reward), []
        for rows in _episodes(run):
            if returns:  # its own iteration would hide an outlier: it is part of the sigma
                sigmas[rows] = np.abs(reward[rows]) / max(float(np.concatenate(returns).std()), REWARD_SIGMA_FLOOR)
            discounted = np.zeros(reward.shape[1])
            for row in rows:
                discounted = gamma * discounted + reward[row]
                returns.append(discounted[valid[row]])
        if np.unique(run.steps.column("iteration")).size < 2:
            return undecided("one iteration has none before it")
        measured = f"largest reward {sigmas.max():.1f} sigma"
        bad = ~(sigmas <= REWARD_CLIP)
        return found(measured, None, _where_steps(run, bad, sigmas)) if bad.any() else passed(measured)


@check
class ComponentShare(Check):
    """P2: one shaping component that drowns the others is what the policy will really optimise."""

    id = "P2"
    title = "One shaping component dominates the reward"
    severity = "medium"
    question = "Does no component other than the objective make up most of the reward?"
    needs = ("steps.reward", "steps.valid")
    minimum = 5
    post_hoc = True
    threshold = "a component other than the objective > 80 % of the summed magnitudes for 5 iterations"
    source = "earlier system's reward audit; so101-nexus#123 (90 % from hovering); number " + OURS
    fix = "Lower that component's weight in train.reward."
    passes_when = "no shaping component exceeds 80 %"

    def examine(self, run: RunRecord) -> Outcome:
        parts, valid = run.steps.below("components"), run.steps.column("valid")
        if len(parts) < 2:
            return undecided("the reward mode has fewer than two components")
        episodes = _episodes(run)
        size = {
            name: np.array([np.abs(np.where(valid[rows], values[rows], 0.0)).sum() for rows in episodes])
            for name, values in parts.items()
        }
        total = np.maximum(np.sum(list(size.values()), axis=0), 1e-12)
        shares = {name: values / total for name, values in size.items()}
        measured = ", ".join(f"{name} {100 * np.median(share):.0f} %" for name, share in shares.items())
        bad = [
            {"component": name, "median_share": float(np.median(share))}
            for name, share in shares.items()
            if name not in OBJECTIVES and longest_run(share > 0.8) >= min(5, len(episodes))
        ]
        return found(measured, None, tuple(bad)) if bad else passed(measured)


@check
class Divergent(Check):
    """P3: a return that rises while the true objective falls is reward hacking by definition."""

    id = "P3"
    title = "Return rises while the true objective does not"
    severity = "high"
    question = "Do returns and committed accuracy rise together?"
    needs = ("episodes.return", "episodes.committed_accuracy")
    minimum = LONG
    threshold = (
        "over the last 20 iterations: Spearman(return, time) > 0.5 (p < 0.05) and Spearman(return, accuracy) < 0"
    )
    source = "Sample Factory true_objective; Irpan 2018; rule " + OURS
    fix = "See which component rose (reward figure); lower its weight."
    passes_when = "returns do not rise at the expense of committed accuracy"

    def examine(self, run: RunRecord) -> Outcome:
        returns = run.episodes.column("return").mean(axis=1)[-LONG:]
        accuracy = np.nanmean(run.episodes.column("committed_accuracy"), axis=1)[-LONG:]
        rising, p_value = spearman(returns, np.arange(float(len(returns))))
        together, _ = spearman(returns, accuracy)
        measured = f"trend of return {rising:+.2f}, return with accuracy {together:+.2f}"
        bad = rising > 0.5 and p_value < 0.05 and together < 0
        return found(measured) if bad else passed(measured)


@check
class Ransomware(Check):
    """P6: a seed that made itself indispensable while the host got worse should not be kept."""

    id = "P6"
    title = "Seeds are fossilized that harmed their host"
    severity = "high"
    question = "Was the host better when a seed was fossilized than when it was germinated?"
    needs = ("steps.effective_op", "steps.live_accuracy", "steps.contribution", "steps.valid")
    post_hoc = True
    threshold = (
        "contribution > 0.1 points but accuracy lost > 0.2 points since germination: any medium, > 20 % of "
        "fossilizations high"
    )
    source = "earlier system's ransomware telemetry; shares " + OURS
    fix = "Make the fossilize bonus conditional on progress since germination."
    passes_when = "no fossilized seed lowered its host's accuracy"

    def examine(self, run: RunRecord) -> Outcome:
        fossilized, harmful = 0, []
        for rows in _episodes(run):
            count, bad = _harmful(run, rows)
            fossilized += count
            harmful += bad
        if not fossilized:
            return undecided("nothing was fossilized")
        share = len(harmful) / fossilized
        measured = f"{len(harmful)} of {fossilized} fossilizations"
        return found(measured, "high" if share > 0.2 else "medium", tuple(harmful[:5])) if harmful else passed(measured)


def _harmful(run: RunRecord, rows: np.ndarray) -> tuple[int, list[Evidence]]:
    """Number of fossilizations in one iteration's episodes, and those of ransomware."""
    column = run.steps.column
    op, slot, valid = (column(name)[rows] for name in ("effective_op", "slot", "valid"))
    accuracy, contribution = column("live_accuracy")[rows], column("contribution")[rows]
    count, bad = 0, []
    for t, env in zip(*np.nonzero((op == Op.FOSSILIZE) & valid), strict=True):
        target = slot[t, env]
        planted = np.flatnonzero((op[:t, env] == Op.GERMINATE) & (slot[:t, env] == target))
        # Measured before the op: the step before germination is unknown at t = 0, then there is nothing to compare.
        if t == 0 or planted.size == 0 or planted[-1] == 0:
            continue
        count += 1
        progress = accuracy[t - 1, env] - accuracy[planted[-1] - 1, env]
        helped = contribution[t - 1, env, target]
        if helped > 0.1 and progress < -0.2:
            bad.append(
                {"iteration": int(column("iteration")[rows[0]]), "step": int(t) + 1, "env": int(env),
                 "progress_pct": float(progress), "contribution_pct": float(helped)}
            )  # fmt: skip
    return count, bad
