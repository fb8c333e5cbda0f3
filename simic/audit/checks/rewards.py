"""Whether the reward says what was meant: shaping that telescopes, components that add up, no hacking."""

import numpy as np

from simic.agent.normalization import REWARD_CLIP, REWARD_SIGMA_FLOOR
from simic.audit.checks.base import Check, Outcome, check, found, judged, passed, undecided
from simic.audit.checks.shared import MOST_EVIDENCE, OURS, RISING, TREND, episodes, longest_run, spearman, where_steps
from simic.audit.findings import Evidence, number, percent
from simic.audit.record import RunRecord
from simic.envs.rewards import OBJECTIVES
from simic.growth.life.vocabulary import Op

TOLERANCE = 1e-6  # of sums of recorded rewards; ours


@check
class Telescoping(Check):
    """P1: potential-based shaping sums to 0 from an empty host to a true terminal, or it changes the task."""

    id = "P1"
    title = "Shaping does not telescope"
    severity = "critical"
    layer = "recompute"
    question = "Is the discounted sum of the shaping term 0 in every finished episode, with the agent's own gamma?"
    needs = ("params", "steps.components.shaping", "steps.valid", "steps.panicked")
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
            complete = len(rows) == train.episode_steps and train.episode_end == "terminate"
            terminal = complete | panicked[rows].any(axis=0)  # a rollback is a terminal too
            finished += int(terminal.sum())
            residual = np.where(terminal, residual, 0.0)
            worst = max(worst, float(residual.max()))
            iteration, bad = int(run.steps.column("iteration")[rows[0]]), np.flatnonzero(~(residual < TOLERANCE))
            evidence += [{"iteration": iteration, "env": int(e), "residual": float(residual[e])} for e in bad]
        if not finished:
            return undecided("no episode reached a true terminal")
        measured = f"largest residual {worst:.2g} in {finished} episodes"
        return judged(bool(evidence), measured, tuple(evidence[:MOST_EVIDENCE]))


@check
class ComponentSum(Check):
    """P5: the reward paid must be the sum of its recorded components."""

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
class Outlier(Check):
    """N4: potential-based rewards are not clipped (that would break their sum), so a huge one must be reported."""

    id = "N4"
    title = "Rewards far out of scale"
    severity = "medium"
    question = f"Is every reward within {REWARD_CLIP:g} standard deviations of the discounted return so far?"
    needs = ("params", "steps.reward", "steps.valid")
    post_hoc = True  # needs earlier iterations
    threshold = f"|r| > {REWARD_CLIP:g} sigma, sigma of the running discounted return of all iterations before"
    source = "Schulman, Nuts and Bolts (clip((x - mu) / sigma, -10, 10)), as a limit instead of a clip"
    fix = "Find the component it came from; lower its weight, or death_penalty."
    passes_when = f"no reward is beyond {REWARD_CLIP:g} sigma"

    def examine(self, run: RunRecord) -> Outcome:
        gamma, valid = run.params.train.ppo.gamma, run.steps.column("valid")
        reward = np.where(valid, run.steps.column("reward"), 0.0)
        sigmas, returns = np.zeros_like(reward), []
        for rows in episodes(run):
            if returns:  # its own iteration would hide an outlier: it is part of the sigma
                sigmas[rows] = np.abs(reward[rows]) / max(float(np.concatenate(returns).std()), REWARD_SIGMA_FLOOR)
            discounted = np.zeros(reward.shape[1])
            for row in rows:
                discounted = gamma * discounted + reward[row]
                returns.append(discounted[valid[row]])
        if np.unique(run.steps.column("iteration")).size < 2:
            return undecided("needs an earlier iteration to compare with")
        measured = f"largest reward {sigmas.max():.1f} sigma"
        bad = ~(sigmas <= REWARD_CLIP)
        return judged(bad, measured, where_steps(run, bad, "sigmas", sigmas))


@check
class ComponentShare(Check):
    """P2: one shaping component that drowns the others is what the policy will really optimise."""

    id = "P2"
    title = "One shaping component dominates the reward"
    severity = "medium"
    question = "Is the reward more than a single shaping component?"
    needs = ("steps.reward", "steps.valid")
    SHARE, ITERATIONS = 0.8, 5
    minimum = ITERATIONS
    post_hoc = True
    threshold = (
        f"a component other than the objective > {percent(SHARE)} of the summed magnitudes for {ITERATIONS} iterations "
        "(or all, if fewer)"
    )
    source = "so101-nexus#123 (90 % from hovering); number " + OURS
    fix = "Lower that component's weight in train.reward."
    passes_when = f"no shaping component exceeds {percent(SHARE)} for long"

    def examine(self, run: RunRecord) -> Outcome:
        parts, valid = run.steps.below("components"), run.steps.column("valid")
        if len(parts) < 2:
            return undecided("the reward has only one component")
        rollouts = episodes(run)
        size = {
            name: np.array([np.abs(np.where(valid[rows], values[rows], 0.0)).sum() for rows in rollouts])
            for name, values in parts.items()
        }
        total = np.maximum(np.sum(list(size.values()), axis=0), 1e-12)
        shares = {name: values / total for name, values in size.items()}
        measured = ", ".join(f"{name} {100 * np.median(share):.0f} %" for name, share in shares.items())
        bad = [
            {"component": name, "median_share": float(np.median(share))}
            for name, share in shares.items()
            if name not in OBJECTIVES and longest_run(share > self.SHARE) >= min(self.ITERATIONS, len(rollouts))
        ]
        return judged(bool(bad), measured, tuple(bad))


@check
class Divergent(Check):
    """P3: a return that rises while the true objective falls is reward hacking by definition."""

    id = "P3"
    title = "Return rises while the true objective does not"
    severity = "high"
    question = "Do returns and committed accuracy rise together?"
    needs = ("episodes.return", "episodes.committed_accuracy")
    minimum = TREND
    P_VALUE = 0.05
    threshold = (
        f"over the last {TREND} iterations: Spearman(return, time) > {RISING:g} (p < {P_VALUE:g}) and "
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
        measured = f"trend of return {rising:+.2f}, correlation of return and accuracy {together:+.2f}"
        return judged(rising > RISING and p_value < self.P_VALUE and together < 0, measured)


@check
class Ransomware(Check):
    """P6: a seed that made itself indispensable while the host got worse should not be kept."""

    id = "P6"
    title = "Seeds that harmed their host were fossilized"
    severity = "high"
    question = "Was no host worse when its seed was fossilized than when it was germinated?"
    needs = (
        "steps.effective_op", "steps.live_accuracy", "steps.contribution", "steps.contribution_se", "steps.valid",
    )  # fmt: skip
    post_hoc = True
    HELPED_PCT, LOST_PCT, SHARE, ERRORS = 0.1, 0.2, 0.2, 4.0
    threshold = (
        f"contribution > {HELPED_PCT:g} points, but accuracy lost > {LOST_PCT:g} points since germination, both also "
        f"> {ERRORS:g} standard errors of the contribution: medium; > {percent(SHARE)} of fossilizations: high"
    )
    source = OURS
    fix = "Make the fossilize bonus conditional on progress since germination."
    passes_when = "no seed was fossilized on a host that had lost accuracy since its germination"

    def examine(self, run: RunRecord) -> Outcome:
        fossilized, harmful = 0, []
        for rows in episodes(run):
            count, bad = self._harmful(run, rows)
            fossilized += count
            harmful += bad
        if not fossilized:
            return undecided("nothing was fossilized")
        share = len(harmful) / fossilized
        measured = f"{len(harmful)} of {fossilized} fossilizations"
        severity = "high" if share > self.SHARE else "medium"
        return found(measured, severity, tuple(harmful[:MOST_EVIDENCE])) if harmful else passed(measured)

    def _harmful(self, run: RunRecord, rows: np.ndarray) -> tuple[int, list[Evidence]]:
        """Number of fossilizations in one iteration's episodes, and those of ransomware."""
        column = run.steps.column
        op, slot, valid = (column(name)[rows] for name in ("effective_op", "slot", "valid"))
        accuracy, contribution = column("live_accuracy")[rows], column("contribution")[rows]
        errors = self.ERRORS * np.nan_to_num(column("contribution_se")[rows])
        count, bad = 0, []
        for t, env in zip(*np.nonzero((op == Op.FOSSILIZE) & valid), strict=True):
            target = slot[t, env]
            planted = np.flatnonzero((op[:t, env] == Op.GERMINATE) & (slot[:t, env] == target))
            # Measured before the op: the step before germination is unknown at t = 0, then there is nothing to compare.
            if t == 0 or planted.size == 0 or planted[-1] == 0:
                continue
            count += 1
            progress = accuracy[t - 1, env] - accuracy[planted[-1] - 1, env]
            helped, noise = contribution[t - 1, env, target], errors[t - 1, env, target]
            if helped > max(self.HELPED_PCT, noise) and progress < -max(self.LOST_PCT, noise):
                bad.append(
                    {"iteration": int(column("iteration")[rows[0]]), "step": int(t) + 1, "env": int(env),
                     "progress_pct": float(progress), "contribution_pct": float(helped)}
                )  # fmt: skip
        return count, bad
