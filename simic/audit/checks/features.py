"""Health of the policy's features and memory."""

from simic.agent.health import SATURATED
from simic.audit import limits
from simic.audit.checks.base import Check, Outcome, Reading, check, weighed
from simic.audit.checks.shared import OURS, where
from simic.audit.findings import percent
from simic.audit.record import RunRecord


@check
class Memory(Check):
    """H1: a memory that saturates or grows over an episode carries nothing."""

    id = "H1"
    title = "The recurrent state saturates or grows"
    severity = "high"
    question = "Does the hidden state stay in its working range over an episode?"
    needs = ("updates.hidden_growth", "updates.hidden_saturated")
    minimum = 3
    complete = False
    GROWTH, UNITS, SHARE = 10.0, 0.9, limits.BAD_MEMORY
    threshold = (
        f"grows > {GROWTH:g} x from the first to the last step, or > {percent(UNITS)} of units beyond ±{SATURATED:g}, "
        f"in > {percent(SHARE)} of updates"
    )
    source = OURS
    fix = "Lower ppo.learning_rate; check observations for unbounded features (N1)."
    passes_when = f"growth stays within {GROWTH:g} x and saturation within {percent(UNITS)} of units in most updates"

    def examine(self, run: RunRecord) -> Outcome:
        growth, saturated = run.updates.column("hidden_growth"), run.updates.column("hidden_saturated")
        # A fresh core starts from zero state, so its first output is small; NaN counts as bad.
        bad = ~(growth <= self.GROWTH) | ~(saturated <= self.UNITS)
        return weighed([Reading(self.SHARE, bad.mean(), None, where(run, "hidden_growth", bad))])
