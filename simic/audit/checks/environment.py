"""What the environment did with the decisions: legality, episode ends, rollbacks, normalisation."""

import numpy as np

from simic.audit.checks.base import OURS, Check, Outcome, check, found, passed
from simic.audit.findings import Evidence
from simic.audit.record import RunRecord
from simic.growth.life.vocabulary import Op


def _rows(run: RunRecord, bad: np.ndarray, most: int = 5) -> tuple[Evidence, ...]:
    column = run.steps.column
    return tuple(
        {
            "iteration": int(column("iteration")[r]),
            "step": int(column("step")[r]),
            "env": int(e),
            "op": Op(int(column("op")[r, e])).name,
        }
        for r, e in list(zip(*np.nonzero(bad), strict=True))[:most]
    )


@check
class Legality(Check):
    """M1: masks make every sampled action legal; an op that has no effect without a gate's refusal was not."""

    id = "M1"
    title = "An illegal action was executed or sampled"
    severity = "critical"
    question = "Did every sampled op take effect unless a gate refused it?"
    needs = ("steps.op", "steps.effective_op", "steps.gate", "steps.gate_passed", "steps.valid")
    threshold = "none"
    source = "Huang and Ontanon 2020 (invalid action masking); sb3-contrib tests"
    fix = "Build masks from the lifecycle's own table, and replay exactly the masks that were acted on."
    passes_when = "sampled and effective op differ only where a gate refused"

    def examine(self, run: RunRecord) -> Outcome:
        op, effective, gate, passed_gate, valid = (
            run.steps.column(name) for name in ("op", "effective_op", "gate", "gate_passed", "valid")
        )
        refused = (gate >= 0) & ~passed_gate
        bad = valid & (np.where(refused, int(Op.WAIT), op) != effective)
        measured = f"{int(bad.sum())} of {int(valid.sum())} decisions"
        return found(measured, None, _rows(run, bad)) if bad.any() else passed(measured)


@check
class EpisodeEnds(Check):
    """M2: a row is experience until its host is rolled back, and never after."""

    id = "M2"
    title = "Rows after an episode's end count as experience"
    severity = "high"
    question = "Is every row valid up to a rollback and none after it?"
    needs = ("steps.valid", "steps.panicked", "steps.step")
    threshold = "none"
    source = "cleanrl#198, skrl#224 (rows of ended episodes leak into advantages)"
    fix = "Mask rows behind a rollback out of the rollout."
    passes_when = "validity ends exactly with a rollback"

    def examine(self, run: RunRecord) -> Outcome:
        iterations, steps = run.steps.column("iteration"), run.steps.column("step")
        order = np.lexsort((steps, iterations))
        valid, panicked = run.steps.column("valid")[order], run.steps.column("panicked")[order]
        expected = np.ones_like(valid)
        same = np.concatenate(([False], np.diff(iterations[order]) == 0))
        for row in range(len(order)):
            if same[row]:
                expected[row] = expected[row - 1] & ~panicked[row - 1]
        bad = np.zeros_like(valid)
        bad[order] = valid != expected
        measured = f"{int(bad.sum())} of {bad.size} rows"
        return found(measured, None, _rows(run, bad)) if bad.any() else passed(measured)


@check
class Rollbacks(Check):
    """S2: frequent rollbacks mean that hosts are trained too hard, and cost samples."""

    id = "S2"
    title = "Hosts are rolled back too often"
    severity = "high"
    question = "Are rollbacks rare?"
    needs = ("steps.panicked", "steps.valid", "episodes.panicked")
    threshold = "> 3 per 100 episodes, or > 5 % of steps discarded"
    source = "paiml/entrenar#127 (3 rollbacks); per 100 episodes: " + OURS
    fix = "Lower train.host_optimizer.learning_rate or max_grad_norm; see the rollback events for causes."
    passes_when = "at most 3 of 100 episodes are rolled back"

    def examine(self, run: RunRecord) -> Outcome:
        panicked = run.episodes.column("panicked")
        rate, lost = 100 * panicked.mean(), 100 * (~run.steps.column("valid")).mean()
        measured = f"{int(panicked.sum())} of {panicked.size} episodes, {lost:.1f} % of steps discarded"
        evidence: tuple[Evidence, ...] = tuple(
            {"iteration": int(i), "rollbacks": int(n)}
            for i, n in zip(run.episodes.column("iteration"), panicked.sum(axis=1), strict=True)
            if n
        )
        return found(measured, None, evidence[:5]) if rate > 3 or lost > 5 else passed(measured)


@check
class Normalisation(Check):
    """N1: unscaled observations or rewards make every other number here hard to read."""

    id = "N1"
    title = "Observations or rewards are not normalised"
    severity = "medium"
    question = "Are observations and rewards normalised?"
    needs = ("params",)
    threshold = "ppo.normalize_observations and ppo.normalize_rewards are on"
    source = "Schulman, Nuts and Bolts (clip((x - mu) / sigma, -10, 10)); Stable-Baselines3 tips"
    fix = "Switch both on, or record the experiment that shows they are not needed."
    passes_when = "both are on"

    def examine(self, run: RunRecord) -> Outcome:
        ppo = run.params.train.ppo
        off = [name for name in ("normalize_observations", "normalize_rewards") if not getattr(ppo, name)]
        return found("off: " + ", ".join(off)) if off else passed("both on")
