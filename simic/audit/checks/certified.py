"""Whether an independent reference, in float64 and without the code it checks, arrives at the same."""

from typing import ClassVar

from simic.audit.certificate import Part
from simic.audit.certify_agent import ROOM
from simic.audit.checks.base import Check, Outcome, check, found, passed, undecided
from simic.audit.checks.shared import MOST_EVIDENCE
from simic.audit.findings import Evidence
from simic.audit.record import RunRecord


class CertifiedPart(Check):
    """One part of the certificate."""

    severity = "critical"
    layer = "certify"
    post_hoc = True
    needs = ("certificate",)
    part: ClassVar[Part]
    threshold = f"a deviation beyond {ROOM:g} times the rounding of clean runs"
    source = "an implementation of its own (simic/audit/reference); bounds measured, docs/history/experiments.md"
    fix = "Do not use the run: look at the first place that differs; one of the implementations is wrong."
    passes_when = "everything agrees within rounding"

    def examine(self, run: RunRecord) -> Outcome:
        assert run.certificate is not None  # stated in needs
        part = run.certificate.part(self.part)
        if part is None or not part.lines:
            return undecided(part.reason if part else "this part was not certified").of(0)
        compared = sum(line.count for line in part.lines)
        evidence: list[Evidence] = [
            {"what": line.what, "where": line.where, "deviation": _said(line.deviation), "allowed": line.allowed}
            for line in part.differences
        ]
        if evidence:
            said = f"{len(evidence)} of {len(part.lines)} kinds differ"
            return found(said, None, tuple(evidence[:MOST_EVIDENCE])).of(compared)
        return passed(f"{compared} comparisons of {len(part.lines)} kinds").of(compared)


def _said(deviation: float | None) -> float | str:
    return "not a number" if deviation is None else deviation


@check
class LearnerCertified(CertifiedPart):
    """K1: a small training with a resume in it, derived again down to the weights."""

    id = "K1"
    part = "learner"
    title = "The learner does not do what it is meant to"
    question = "Does an independent reference compute the same actions, advantages, PPO updates and resume?"


@check
class WorldCertified(CertifiedPart):
    """K2: hosts that grow a second time in the reference."""

    id = "K2"
    part = "world"
    title = "Hosts do not grow as they are meant to"
    question = (
        "Does an independent reference compute the same host training, lifecycle, masks, observations and rewards?"
    )


@check
class EpisodesCertified(CertifiedPart):
    """K3: recorded episodes of this run, played again from its data and decisions."""

    id = "K3"
    part = "episodes"
    title = "Recorded episodes cannot be played again"
    question = "Played again on the prepared data, do the recorded decisions give the recorded episodes?"


@check
class GrownCertified(CertifiedPart):
    """K4: the network that the run hands out, on the samples that it was scored on."""

    id = "K4"
    part = "grown network"
    title = "The exported network is not what is said of it"
    question = "Has the exported network, run by torch alone, the accuracy and size that the evaluation claims?"


@check
class EvaluationCertified(CertifiedPart):
    """K5: evaluated episodes, played again from the published weights and the held-out data."""

    id = "K5"
    part = "evaluation"
    title = "Evaluated episodes cannot be played again"
    question = "Do the published weights take the recorded decisions, and is the final network as good as claimed?"
