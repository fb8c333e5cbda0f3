"""Agreement with the float64 reference, part by part."""

from typing import ClassVar

from simic.audit.certificate import Part
from simic.audit.checks.base import MOST_EVIDENCE, Check, Outcome, check, failed, passed, undecided
from simic.audit.findings import Evidence
from simic.audit.record import RunRecord


class CertifiedPart(Check):
    """Judge one part of the certificate."""

    severity = "critical"
    layer = "certify"
    post_hoc = True
    needs = ("certificate",)
    part: ClassVar[Part]
    threshold = "a deviation that rounding does not explain: several times what it came to in clean runs"
    source = "an implementation of its own (simic/certify); bounds measured, docs/history/experiments.md"
    fix = "Do not use the run: look at the first place that differs; one of the implementations is wrong."
    passes_when = "everything agrees within rounding"

    def examine(self, run: RunRecord) -> Outcome:
        assert run.certificate is not None  # stated in needs
        part = run.certificate.part(self.part)
        if part is None or not part.lines:
            return undecided(part.reason if part else "this part was not certified").of(0)
        compared = sum(line.count for line in part.lines)
        evidence: list[Evidence] = [
            {
                "what": line.what,
                "where": line.where,
                "deviation": "not a number" if line.deviation is None else line.deviation,
                "allowed": line.allowed or 0.0,
            }
            for line in part.differences
        ]
        if evidence:
            said = f"{len(evidence)} of {len(part.lines)} kinds differ"
            return failed(said, None, tuple(evidence[:MOST_EVIDENCE])).of(compared)
        return passed(f"{compared} comparisons of {len(part.lines)} kinds").of(compared)


@check
class IterationsCertified(CertifiedPart):
    """Check K1: iterations of this run, at their real size, derived down to the weights."""

    id = "K1"
    part = "iterations"
    title = "Iterations cannot be derived again"
    question = "Does an independent reference compute the same actions, advantages, updates and counters?"


@check
class EpisodesCertified(CertifiedPart):
    """Check K2: recorded training episodes, at least one of every process, replayed from data and decisions."""

    id = "K2"
    part = "episodes"
    title = "Recorded episodes cannot be played again"
    question = "Do the same decisions lead the same hosts to the same states, observations and rewards?"


@check
class EvaluationCertified(CertifiedPart):
    """Check K3: evaluated episodes, decided by the published weights."""

    id = "K3"
    part = "evaluation"
    title = "Evaluated episodes cannot be played again"
    question = "Do the published weights decide so, and end with networks of the size and accuracy that are claimed?"


@check
class HeadroomCertified(CertifiedPart):
    """Check K4: replayed schedules of the search."""

    id = "K4"
    part = "headroom"
    title = "The search's schedules cannot be played again"
    question = "Do the schedules of headroom.json end with networks of the size and accuracy that are claimed?"


@check
class GrownCertified(CertifiedPart):
    """Check K5: the exported network, run from its files."""

    id = "K5"
    part = "grown network"
    title = "The exported network is not what is said of it"
    question = "Do the exported weights and program have the accuracy that is claimed on the held-out samples?"
