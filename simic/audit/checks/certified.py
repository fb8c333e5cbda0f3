"""Agreement with the float64 reference, part by part."""

from functools import partial

from simic.audit.certificate import Part
from simic.audit.checks.base import Outcome, check, judged, undecided
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
    kinds, compared = len(certified.lines), sum(line.count for line in certified.lines)
    return judged(
        evidence, f"{len(evidence)} of {kinds} kinds differ" if evidence else f"{compared} comparisons of {kinds} kinds"
    )


PARTS: dict[Part, tuple[str, str]] = {  # what is wrong; the question
    "iterations": (
        "Iterations cannot be derived again",
        "Does an independent reference compute the same actions, advantages, updates and counters?",
    ),
    "episodes": (
        "Recorded episodes cannot be played again",
        "Do the same decisions lead to the same states, observations and rewards again?",
    ),
    "evaluation": (
        "Evaluated episodes cannot be played again",
        "Do the published weights decide so, and come to the score and size that are claimed?",
    ),
    "headroom": (
        "The search's schedules cannot be played again",
        "Do the schedules of headroom.json end with networks of the size and accuracy that are claimed?",
    ),
    "grown network": (
        "The exported network is not what is said of it",
        "Do the exported weights and program have the accuracy that is claimed on the held-out samples?",
    ),
}
for number, (part, (wrong, asked)) in enumerate(PARTS.items(), start=1):
    check(
        id=f"K{number}",
        subject="growth" if part in ("headroom", "grown network") else "any",
        title=wrong,
        question=asked,
        severity="critical",
        layer="certify",
        post_hoc=True,
        needs=("certificate",),
        threshold="a deviation that rounding does not explain: several times what it came to in clean runs",
        source="an implementation of its own (simic/certify); bounds measured, docs/history/experiments.md",
        fix="Do not use the run: look at the first place that differs; one of the implementations is wrong.",
    )(partial(_agreement, part))
