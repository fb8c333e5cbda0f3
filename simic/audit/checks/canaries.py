"""Whether this code still learns where the answer is known."""

from simic.audit import limits
from simic.audit.checks.base import Check, Outcome, Reading, check, found, undecided, weighed
from simic.audit.record import RunRecord


@check
class CanaryLearns(Check):
    """K6: a controller trained on a planted task."""

    id = "K6"
    title = "A controller does not learn what it should"
    severity = "high"
    layer = "canary"
    post_hoc = True
    question = "Trained by this code on a task whose best seed is known, does a controller grow that seed?"
    needs = ("certificate",)
    counted = "controller"
    WON = limits.CANARY
    threshold = f"{WON.name} < {WON:g}"
    source = "ours, least of 30 seeds of clean code / 1.5 (benchmarks/canary.py)"
    fix = "Do not trust the training: the code learns worse than it did; bisect its changes with benchmarks/canary.py."
    passes_when = "it wins about what clean code wins"

    def examine(self, run: RunRecord) -> Outcome:
        assert run.certificate is not None  # stated in needs
        canary = run.certificate.canary
        if canary is None:
            return undecided("no controller was trained on a planted task (audit.canary)").of(0)
        if canary.won_pct is None:
            return found(f"could not be trained: {canary.reason}").of(1)
        evidence = {"germinated it first": canary.first, "kept it": canary.kept}
        return weighed([Reading(self.WON, canary.won_pct, "high", (evidence,))]).of(1)
