"""What the environment did with the decisions: legality, episode ends, rollbacks, normalisation."""

import numpy as np

from simic.audit.checks.base import Check, Outcome, check, found, judged
from simic.audit.checks.shared import MOST_EVIDENCE, OURS, episodes, where_steps
from simic.audit.findings import Evidence, percent
from simic.audit.record import RunRecord
from simic.growth.life.vocabulary import Op


def _ops(run: RunRecord, bad: np.ndarray) -> tuple[Evidence, ...]:
    names = np.array([op.name for op in Op])
    return where_steps(run, bad, "op", names[run.steps.column("op")])


@check
class Legality(Check):
    """M1: masks make every sampled action legal, so only a gate may keep an op from taking effect."""

    id = "M1"
    title = "An illegal action was sampled or executed"
    severity = "critical"
    layer = "recompute"
    question = "Did every sampled op take effect unless a gate refused it?"
    needs = ("steps.op", "steps.effective_op", "steps.gate", "steps.gate_passed", "steps.valid")
    threshold = "a valid step whose effective op is not the sampled one (WAIT where a gate refused)"
    source = "Huang and Ontanon 2020 (invalid action masking); sb3-contrib tests"
    fix = "Build masks from the lifecycle's own table, and replay with exactly the masks used when acting."
    passes_when = "sampled and effective op differ only where a gate refused"

    def examine(self, run: RunRecord) -> Outcome:
        op, effective, gate, passed_gate, valid = (
            run.steps.column(name) for name in ("op", "effective_op", "gate", "gate_passed", "valid")
        )
        refused = (gate >= 0) & ~passed_gate
        bad = valid & (np.where(refused, int(Op.WAIT), op) != effective)
        return judged(bad, f"{int(bad.sum())} of {int(valid.sum())} decisions", _ops(run, bad))


@check
class EpisodeEnds(Check):
    """M2: a row is experience until its host is rolled back, and never after."""

    id = "M2"
    title = "Validity of rows does not follow the rollbacks"
    severity = "high"
    question = "Is every row valid up to a rollback and none after it?"
    needs = ("steps.valid", "steps.panicked", "steps.step")
    threshold = "a valid row after its host's rollback, or an invalid row without one before it"
    source = "cleanrl#198, skrl#224 (rows of ended episodes leak into advantages)"
    fix = "Mask the rows after a rollback, and only those, out of the rollout."
    passes_when = "validity ends exactly with a rollback"

    def examine(self, run: RunRecord) -> Outcome:
        valid, panicked = run.steps.column("valid"), run.steps.column("panicked")
        expected = np.ones_like(valid)
        for rows in episodes(run):
            expected[rows[1:]] = ~np.logical_or.accumulate(panicked[rows[:-1]])
        bad = valid != expected
        return judged(bad, f"{int(bad.sum())} of {bad.size} rows", _ops(run, bad))


@check
class Rollbacks(Check):
    """S2: frequent rollbacks mean that hosts are trained too hard, and cost samples."""

    id = "S2"
    title = "Hosts are rolled back too often"
    severity = "high"
    question = "Are rollbacks rare?"
    needs = ("steps.panicked", "steps.valid", "episodes.panicked")
    EPISODES_PCT, STEPS_PCT = 3.0, 5.0
    threshold = f"> {EPISODES_PCT:g} % of episodes rolled back, or > {STEPS_PCT:g} % of steps discarded"
    source = "paiml/entrenar#127 (3 rollbacks); shares " + OURS
    fix = "Lower train.host_optimizer.learning_rate or max_grad_norm; see the rollback events for causes."
    passes_when = f"at most {EPISODES_PCT:g} % of episodes are rolled back and {STEPS_PCT:g} % of steps discarded"

    def examine(self, run: RunRecord) -> Outcome:
        panicked = run.episodes.column("panicked")
        rate, lost = 100 * panicked.mean(), 100 * (~run.steps.column("valid")).mean()
        measured = f"{int(panicked.sum())} of {panicked.size} episodes, {lost:.1f} % of steps discarded"
        counts = zip(run.episodes.column("iteration"), panicked.sum(axis=1), strict=True)
        evidence = tuple({"iteration": int(i), "rollbacks": int(n)} for i, n in counts if n)
        return judged(rate > self.EPISODES_PCT or lost > self.STEPS_PCT, measured, evidence[:MOST_EVIDENCE])


@check
class Normalisation(Check):
    """N1: unscaled observations or rewards make every other number here hard to read."""

    id = "N1"
    title = "Observations or rewards are not normalised"
    severity = "medium"
    question = "Are observations and rewards normalised?"
    needs = ("params", "updates.observation_clipped")
    SHARE = 0.01
    threshold = (
        f"ppo.normalize_observations or ppo.normalize_rewards is off; or > {percent(SHARE)} of normalised observations "
        "lie on their clip in most updates"
    )
    source = "Schulman, Nuts and Bolts (clip((x - mu) / sigma, -10, 10)); Stable-Baselines3 tips"
    fix = "Switch both on, or record the experiment that shows they are not needed."
    passes_when = f"both are on, and at most {percent(SHARE)} of observations are clipped"

    def examine(self, run: RunRecord) -> Outcome:
        ppo = run.params.train.ppo
        off = [name for name in ("normalize_observations", "normalize_rewards") if not getattr(ppo, name)]
        if off:
            return found("off: " + ", ".join(off))
        clipped = float(np.median(run.updates.column("observation_clipped")))
        return judged(clipped > self.SHARE, f"both on, {100 * clipped:.2g} % of observations clipped")
