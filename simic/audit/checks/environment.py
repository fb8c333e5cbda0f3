"""Legality of executed actions, and validity of rows after a rollback."""

import numpy as np

from simic.audit import limits
from simic.audit.checks.base import Check, Outcome, Reading, check, episodes, judged, weighed, where_steps
from simic.audit.findings import Evidence
from simic.audit.record import RunRecord
from simic.growth.life.vocabulary import Op


def _ops(run: RunRecord, bad: np.ndarray) -> tuple[Evidence, ...]:
    names = np.array([op.name for op in Op])
    return where_steps(run, bad, "op", names[run.steps.column("op")])


@check
class Legality(Check):
    """Check M1: masks make every sampled action legal, so only a gate may keep an op from taking effect."""

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
    """Check M2: a row is experience until its host is rolled back, and never after."""

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
        return weighed([Reading(limits.WRONG_ROWS, bad.sum(), None, _ops(run, bad))])
