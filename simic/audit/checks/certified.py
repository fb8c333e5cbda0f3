"""Agreement with the float64 reference, part by part."""

from functools import partial

from simic.audit.certificate import Part
from simic.audit.checks.base import Outcome, check, failed, passed, undecided
from simic.audit.findings import Evidence
from simic.audit.record import RunRecord


def _agreement(part: Part, run: RunRecord) -> Outcome:
    """Judge one part of the certificate."""
    assert run.certificate is not None  # stated in needs
    certified = run.certificate.part(part)
    if certified is None or not certified.lines:
        return undecided(certified.reason if certified else "this part was not certified")
    evidence: list[Evidence] = [
        {
            "what": line.what,
            "where": line.where,
            "deviation": "not a number" if line.deviation is None else line.deviation,
            "allowed": line.allowed or 0.0,
        }
        for line in certified.differences
    ]
    kinds = len(certified.lines)
    if evidence:
        return failed(f"{len(evidence)} of {kinds} kinds differ", None, evidence)
    return passed(f"{sum(line.count for line in certified.lines)} comparisons of {kinds} kinds")


PARTS: tuple[tuple[str, Part, str, str], ...] = (
    (
        "K1",
        "iterations",
        "Iterations cannot be derived again",
        "Does an independent reference compute the same actions, advantages, updates and counters?",
    ),
    (
        "K2",
        "episodes",
        "Recorded episodes cannot be played again",
        "Do the same decisions lead to the same states, observations and rewards again?",
    ),
    (
        "K3",
        "evaluation",
        "Evaluated episodes cannot be played again",
        "Do the published weights decide so, and come to the score and size that are claimed?",
    ),
    (
        "K4",
        "headroom",
        "The search's schedules cannot be played again",
        "Do the schedules of headroom.json end with networks of the size and accuracy that are claimed?",
    ),
    (
        "K5",
        "grown network",
        "The exported network is not what is said of it",
        "Do the exported weights and program have the accuracy that is claimed on the held-out samples?",
    ),
)
for number, name, wrong, asked in PARTS:
    check(
        id=number,
        subject="growth" if name in ("headroom", "grown network") else "any",
        title=wrong,
        question=asked,
        severity="critical",
        layer="certify",
        post_hoc=True,
        needs=("certificate",),
        threshold="a deviation that rounding does not explain: several times what it came to in clean runs",
        source="an implementation of its own (simic/certify); bounds measured, docs/history/experiments.md",
        fix="Do not use the run: look at the first place that differs; one of the implementations is wrong.",
    )(partial(_agreement, name))
