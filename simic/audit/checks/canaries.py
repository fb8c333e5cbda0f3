"""Whether this code still learns where the answer is known."""

from simic.audit import limits
from simic.audit.certificate import Canary, Learning
from simic.audit.checks.base import Check, Outcome, Reading, check, found, undecided, weighed
from simic.audit.limits import Limit
from simic.audit.record import RunRecord

LIMITS: dict[Learning, Limit] = {"taught": limits.TAUGHT_CANARY, "PPO": limits.PPO_CANARY}


@check
class Canaries(Check):
    """K6: a controller trained on a planted task, in each way in which the run trained."""

    id = "K6"
    title = "A controller does not learn what it should"
    severity = "high"
    layer = "canary"
    post_hoc = True
    question = "Trained by this code on a task whose best seed is known, does a controller grow that seed?"
    needs = ("certificate",)
    counted = "controller"
    threshold = " or ".join(f"{limit.name} < {limit:g}" for limit in LIMITS.values())
    source = "ours, least of 30 seeds of clean code / 1.5 (benchmarks/canary.py)"
    fix = "Do not trust the training: the code learns worse than it did; bisect its changes with benchmarks/canary.py."
    passes_when = "each wins about what clean code wins"

    def examine(self, run: RunRecord) -> Outcome:
        assert run.certificate is not None  # stated in needs
        canaries = run.certificate.canaries
        if not canaries:
            return undecided("no controller was trained on a planted task (audit.canary)").of(0)
        for canary in canaries:
            if canary.won_pct is None:
                return found(f"{canary.learning}: could not be trained: {canary.reason}").of(len(canaries))
        return weighed([_reading(canary) for canary in canaries]).of(len(canaries))


def _reading(canary: Canary) -> Reading:
    assert canary.won_pct is not None
    evidence = {"learning": canary.learning, "germinated it first": canary.first, "kept it": canary.kept}
    return Reading(LIMITS[canary.learning], canary.won_pct, "high", (evidence,))
